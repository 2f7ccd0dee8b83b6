"use strict";
(() => {
  const body = document.querySelector("#table tbody");
  const search = document.querySelector("#filters input");
  const rows = body ? [...body.rows] : [];
  const texts = rows.map((row) => `${row.textContent} status:${row.dataset.status}`.toLowerCase());

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
    document.getElementById("count").textContent = `${part} cases`;
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
      const { textContent: text, dataset } = row.cells[heading.cellIndex];
      const number = dataset.sort ?? (text.endsWith("%") ? text.slice(0, -1) : undefined);
      return number === undefined ? text || null : Number(number);
    };
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      const by = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
      return next === "descending" ? -by : by;
    };
    body.append(...(next ? [...rows].sort(order) : rows));
  }

  /** Open what the address names, or search for its words. */
  function visit() {
    const name = decodeURIComponent(location.hash.slice(1));
    if (search && name.startsWith("q=")) {
      search.value = name.slice(2);
      filter();
      document.getElementById("cases").scrollIntoView();
      return;
    }
    const target = document.getElementById(name);
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
    for (const button of document.querySelectorAll("#table .sort")) {
      button.addEventListener("click", () => sort(button.parentElement));
    }
    filter();
  }
  addEventListener("hashchange", visit);
  visit();
  document.documentElement.dataset.ready = "yes";
})();
