"use strict";
(() => {
  const body = document.querySelector("#table tbody");
  const search = document.querySelector("#filters input");
  const rows = body ? [...body.rows] : [];
  const texts = rows.map((row) => {
    const status = row.cells[2].textContent.replace(/[()]/g, "").replaceAll(" ", "-");
    return `${row.textContent} status:${status}`.toLowerCase();
  });
  const SCALES = { n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, x: 100 };

  /** The number that a cell begins with, in its unit without a prefix; a ratio in percent. */
  function number(text) {
    const [, digits, prefix] =
      /^(?:> )?([+-]?[\d.]+(?:e[+-]?\d+)?)(?: ?([numkMGx])(?:s|iB)?(?=$|[ /]))?/.exec(text) ?? [];
    return digits === undefined ? null : digits * (SCALES[prefix] ?? 1);
  }

  /** Show the rows that have every word, and their number. */
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      shown += !row.hidden;
    });
    const count = rows.length.toLocaleString("en");
    const part = words.length ? `${shown.toLocaleString("en")} of ${count}` : count;
    document.getElementById("count").textContent = `${part} ${rows.length === 1 ? "case" : "cases"}`;
  }

  /** Sort by a column: up, down, and back to the worst first. */
  function sort(heading) {
    const first = heading.cellIndex > 2 ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const following = { [first]: other, [other]: null };
    const next = following[heading.ariaSort] ?? (heading.ariaSort ? null : first);
    for (const cell of heading.parentElement.cells) cell.removeAttribute("aria-sort");
    if (next) heading.setAttribute("aria-sort", next);
    const value = (row) => {
      const text = row.cells[heading.cellIndex].textContent;
      return heading.cellIndex > 2 ? number(text) : text;
    };
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      const by = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
      return next === "descending" ? -by : by;
    };
    body.append(...(next ? [...rows].sort(order) : rows));
  }

  /** Open what the address names, or search for its words or for a case without details. */
  function visit() {
    const name = decodeURIComponent(location.hash.slice(1));
    const target = document.getElementById(name);
    const words = target ? null : /^(?:q=|case\/[^/]*\/)(.*)/.exec(name);
    if (search && words) {
      search.value = words[1];
      filter();
      document.getElementById("cases").scrollIntoView();
      return;
    }
    if (!target) return;
    for (let element = target; element; element = element.parentElement) {
      if (element.tagName === "DETAILS") element.open = true;
    }
    target.scrollIntoView();
  }

  if (body) {
    document.getElementById("filters").hidden = false;
    search.addEventListener("input", () => {
      filter();
      const address = search.value ? `#q=${encodeURIComponent(search.value)}` : "#cases";
      history.replaceState(null, "", address);
    });
    for (const heading of document.querySelectorAll("#table thead th")) {
      const button = Object.assign(document.createElement("button"), { className: "sort" });
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(heading));
    }
    filter();
  }
  addEventListener("hashchange", visit);
  visit();
  document.documentElement.dataset.ready = "yes";
})();
