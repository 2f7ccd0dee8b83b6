"use strict";
(async () => {
  const PAGE = 100;
  const MOST_PRINTED = 1000;
  const PAPER = 660;
  const root = document.documentElement;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  /** Return a new element; every text goes in as text. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }
  const words = (status) => status.replaceAll("_", " ").toLowerCase();
  const counted = (count) => count.toLocaleString("en");

  /** Return the page's data, which is JSON, compressed. */
  async function unpacked(held) {
    const letters = held.textContent; // browsers before 2025 have no fromBase64
    const bytes = Uint8Array.fromBase64?.(letters) ?? Uint8Array.from(atob(letters), (one) => one.charCodeAt(0));
    const packed = new DecompressionStream("deflate"), writer = packed.writable.getWriter();
    writer.write(bytes);
    writer.close();
    return new Response(packed.readable).json();
  }

  // --- themes -----------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const button = $("#theme");
  function showTheme() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
  }
  function remembered(theme) {
    try {
      if (theme) localStorage.setItem("bench-lib-theme", theme);
      return localStorage.getItem("bench-lib-theme");
    } catch {
      return null; // no storage for files here
    }
  }
  if (remembered()) root.dataset.theme = remembered();
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();

  // --- commands ---------------------------------------------------------------------------

  const COPY = "Copy";
  document.addEventListener("click", async (event) => {
    const pressed = event.target.closest(".copy");
    if (!pressed) return;
    const text = $("code", pressed.parentElement);
    try {
      await navigator.clipboard.writeText(text.textContent);
      pressed.textContent = "Copied";
      setTimeout(() => { pressed.textContent = COPY; }, 2000);
    } catch { // no clipboard here: one key is left to press
      getSelection().selectAllChildren(text);
    }
  });
  for (const one of $$(".copy")) one.hidden = false;
  function commands(told) {
    return element("dl", { class: "commands" }, ...told.map(([what, line]) => element("div", {},
      element("dt", {}, what),
      element("dd", {}, element("code", {}, line), element("button", { type: "button", class: "control quiet copy", "aria-label": `${COPY}: ${what}` }, COPY)))));
  }

  const held = document.getElementById("data");
  const arriving = held ? unpacked(held) : Promise.resolve({ rows: [] });
  let data = null;
  let rested = performance.now();
  /** Let the browser answer somebody, where work has kept it for long. */
  async function rest() {
    if (performance.now() - rested < 30) return;
    await new Promise((go) => { setTimeout(go); });
    rested = performance.now();
  }

  // --- charts -----------------------------------------------------------------------------

  let isPrinting = false;
  const isNarrow = () => !isPrinting && innerWidth < 560;
  function unit(most) {
    for (const [name, scale] of [["s", 1e6], ["ms", 1e3], ["µs", 1]]) if (most >= scale) return [name, scale];
    return ["ns", 1e-3];
  }
  const signed = (ratio) => {
    const text = Math.abs(100 * (ratio - 1)).toFixed(1);
    return `${Number(text) === 0 ? "" : ratio < 1 ? "−" : "+"}${text}%`;
  };
  const digits = (value) => String(Number(value.toPrecision(4)));
  function round(value) {
    for (const [name, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= 10 * scale) return `${value / scale}${name}`;
    return String(value);
  }
  /** Return a series' values in microseconds: they are kept as ten-thousandths of the first. */
  const values = (series) => (series.d ?? []).map((far) => series.y * (1 + far / 1e4));

  function history(series) {
    const runs = data.walks[series.w].map((at) => data.runs[at]);
    const times = runs.map((run) => Date.parse(run[1]));
    const band = series.b;
    const known = values(series);
    const [name, scale] = unit(Math.max(...known, ...(band ?? [])));
    const y = known.map((value) => value / scale);
    const odd = new Map(series.s ?? []);
    const shown = [...y, ...(band ? [band[0] / scale, band[2] / scale] : [])];
    const low = Math.min(...shown), high = Math.max(...shown);
    const room = (high - low || high || 1) * 0.14;
    const floor = low - room;
    const point = (at) => [times[at], y[at], `${digits(y[at])} ${name}${odd.has(at) ? `, ${words(odd.get(at))}` : ""}\n${runs[at][1].slice(0, 16).replace("T", " ")}\nrun ${runs[at][0]}`];
    const kind = (at) => (!odd.has(at) ? "run" : ["REGRESSED", "ERROR"].includes(odd.get(at)) ? "bad" : "odd");
    const of = (asked) => y.flatMap((_, at) => (kind(at) === asked ? [point(at)] : []));
    const changed = (at, place) => {
      const told = data.words[place];
      return [times[at], floor, told.slice(0, 8).join("\n") + (told.length > 8 ? `\nand ${told.length - 8} more` : "")];
    };
    const within = (when) => Date.parse(when) >= times[0] && Date.parse(when) <= times.at(-1);
    const spread = (times.at(-1) - times[0] || 864e5) * 0.01;
    return {
      height: 240,
      x: charts.time(times[0] - spread, times.at(-1) + spread, isNarrow() ? 4 : 8),
      y: charts.linear(floor, high + room, 5, (value) => `${digits(value)} ${name}`),
      bands: band ? [{ low: band[0] / scale, high: band[2] / scale, class: "band" }] : [],
      rules: [
        ...(band ? [{ y: band[1] / scale, class: "middle-of-band" }] : []),
        ...(series.m ?? []).map(([when, ratio]) => ({ x: Date.parse(when), label: signed(ratio), class: ratio > 1 ? "bad" : "good" })).reverse(),
        ...(series.a ?? []).filter(([when]) => within(when)).map(([when]) => ({ x: Date.parse(when), label: "accepted", class: "accepted" })).reverse(),
      ],
      lines: y.length > 1 ? [{ class: "run", points: y.map((value, at) => [times[at], value]) }] : [],
      dots: [
        { class: "run", round: y.length > 150 ? 3 : 5, points: of("run") },
        { class: "odd", points: of("odd") },
        { class: "bad", mark: "square", points: of("bad") },
        { class: "changed", mark: "triangle", points: (series.e ?? []).map(([at, place]) => changed(at, place)) },
      ].filter((dots) => dots.points.length),
    };
  }

  function legend(series) {
    const keys = [["k-night", "run"]];
    const statuses = new Set((series.s ?? []).map(([, status]) => status));
    const bad = ["REGRESSED", "ERROR"].filter((status) => statuses.delete(status));
    if (bad.length) keys.push(["k-bad", bad.map(words).join(", ")]);
    if (statuses.size) keys.push(["k-odd", [...statuses].map(words).join(", ")]);
    if (series.b) keys.push(["k-band", "baseline, and what is tolerated"]);
    const accepted = (series.a ?? []).filter(([, reason]) => reason).map(([when, reason]) => `accepted ${when.slice(0, 10)}: ${reason}`);
    if (series.a) keys.push(["k-accepted", accepted[0] ?? "accepted"]);
    if (series.e) keys.push(["k-changed", "environment changed"]);
    if (series.m) keys.push(["k-moved", "change point"]);
    return keys.map(([kind, text]) => element("span", {}, element("i", { class: kind }), text));
  }

  const looks = (n) => ({ class: `c${n % 8}`, mark: charts.SYMBOLS[n % charts.SYMBOLS.length] });
  const COMPARED = {
    dots(figure) {
      const all = figure.series.flatMap((one) => one.x);
      return {
        height: 60 + 22 * figure.rows.length,
        x: charts.logarithmic([...all, 1], isNarrow() ? 4 : 8, (value) => `${round(value)}×`),
        y: charts.rows(figure.rows),
        rules: [{ x: 1, class: "one" }],
        dots: figure.series.map((one, n) => ({ ...looks(n), points: one.x.map((value, i) => [value, one.at[i], `${figure.rows[one.at[i]]}\n${one.name}: × ${value}`]) })),
      };
    },
    lines(figure) {
      const xs = [...new Set(figure.series.flatMap((one) => one.x))].sort((a, b) => a - b);
      const ys = figure.series.flatMap((one) => one.y);
      const x = charts.logarithmic(xs, xs.length, String);
      const ends = figure.ideal ? [[xs[0], xs[0]], [xs.at(-1), xs.at(-1)]] : [];
      return {
        height: 340, title: [figure.x, figure.y],
        x: { ...x, ticks: xs.map((value) => [value, String(value)]) },
        y: charts.logarithmic([...ys, ...ends.map(([, value]) => value)], 6, round),
        lines: [...(ends.length ? [{ class: "ideal", points: ends }] : []), ...figure.series.map((one, n) => ({ class: `c${n % 8}`, points: one.x.map((value, i) => [value, one.y[i]]) }))],
        dots: figure.series.map((one, n) => ({ ...looks(n), points: one.x.map((value, i) => [value, one.y[i], `${one.name}\n${figure.x} ${value}: ${digits(one.y[i])}`]) })),
      };
    },
    roofline(figure) {
      const tera = (value) => value / 1e12;
      const bandwidth = tera(figure.bandwidth);
      const peaks = figure.peaks.map(([name, value]) => [name, tera(value)]);
      const top = Math.max(0, ...peaks.map(([, peak]) => peak));
      const xs = figure.series.flatMap((one) => one.x).concat(peaks.map(([, peak]) => peak / bandwidth));
      const left = Math.min(...xs) / 2, right = Math.max(...xs) * 3;
      const levels = new Map();
      for (const [name, peak] of peaks) levels.set(peak, [...(levels.get(peak) ?? []), name]);
      const roofs = [...levels.keys()].map((peak) => ({ class: "roof", points: [[peak / bandwidth, peak], [right, peak]] }));
      if (top) roofs.push({ class: "roof", points: [[left, left * bandwidth], [top / bandwidth, top]] });
      const ys = figure.series.flatMap((one) => one.y.map(tera)).concat(top || 1);
      const at = (one, i) => [one.x[i], tera(one.y[i]), `${one.text[i]}\n${one.share[i]}\n${digits(one.x[i])} FLOP/byte, ${digits(tera(one.y[i]))} TFLOP/s`];
      const low = Math.min(...ys, left * bandwidth);
      return {
        height: 400, title: ["FLOP/byte", "TFLOP/s"],
        x: charts.logarithmic([left, right], isNarrow() ? 4 : 8, round, 1),
        y: charts.logarithmic([low, ...ys], 6, round, 1.3),
        rules: [...levels].map(([peak, names]) => ({ y: peak, class: "hidden", label: `${names.join(", ")} ${digits(peak)} TFLOP/s` })),
        lines: roofs,
        dots: [
          ...figure.series.map((one, n) => ({ ...looks(n), points: one.x.map((_, i) => at(one, i)) })),
          { class: "failing", size: 1.9, points: figure.series.flatMap((one) => one.failing.map((i) => at(one, i).slice(0, 2))) },
        ],
      };
    },
  };

  /** Return a chart's width by the box around it: a browser knows that of one that it skips. */
  function room(plot) {
    if (isPrinting) return PAPER;
    const box = plot.closest(".failure, .comparison, .detail > td"), style = getComputedStyle(box);
    return box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  }
  function draw(plot, width) {
    plot.dataset.width = width;
    if (plot.dataset.series !== undefined) {
      const series = data.series[plot.dataset.series];
      if (!series.d) return;
      charts.draw(plot, history(series), width);
      const caption = $(".legend", plot.parentElement);
      if (!caption.childElementCount) caption.append(...legend(series));
    } else {
      const figure = data.comparisons[plot.dataset.comparison];
      charts.draw(plot, COMPARED[figure.kind](figure), width);
      const caption = $(".legend", plot.parentElement);
      if (!caption.childElementCount) caption.append(...figure.series.map((one, n) => element("span", {}, charts.mark(looks(n).mark, looks(n).class), one.name)));
    }
  }
  const watcher = new ResizeObserver((seen) => {
    for (const { target, contentRect } of seen) {
      const { width } = contentRect;
      if (!isPrinting && width && Math.abs(width - target.dataset.width) >= 1) draw(target, width);
    }
  });
  /** Draw every chart, whether somebody looks or not: what captures a page does not scroll. */
  function drawn(within) {
    if (!data) return;
    const plots = $$(".plot", within);
    const widths = plots.map(room); // all of them first: each one after a drawing lays the page out
    plots.forEach((plot, at) => {
      draw(plot, widths[at]);
      watcher.observe(plot);
    });
  }

  for (const group of $$(".comparison")) {
    const pick = $(".pick", group);
    if (!pick) continue;
    const figures = $$(".compared", group);
    const choose = () => figures.forEach((figure) => { figure.hidden = figure.dataset.group !== $("select", pick).value; });
    pick.hidden = false;
    $("select", pick).addEventListener("change", choose);
    choose();
  }

  // --- addresses --------------------------------------------------------------------------

  const address = (at) => `case/${data.rows[at].hardware}/${data.rows[at].case}`.replace(/\s/g, "_");
  /** Return a function that makes something when it is first asked for it. */
  const once = (make) => { let made; return () => (made ??= make()); };
  const places = once(() => new Map(data.rows.map((_, at) => [address(at), at])));
  const asked = () => {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {
      return location.hash.slice(1);
    }
  };
  /** Show what the address names: a case's row, or what is folded in a cause. */
  function visit() {
    const name = asked(), found = document.getElementById(name);
    if (name.startsWith("cause/") && found) for (const one of $$("details", found)) one.open = true;
    if (!name || !table || !places().has(name)) return;
    if (found && !found.closest("#table")) return;
    table.reveal(places().get(name));
  }

  // --- every case as a cell -----------------------------------------------------------------

  const cells = $$(".strip a");
  /** Name every cell, for the pointer and for screen readers. */
  async function named() {
    for (const cell of cells) {
      const at = places().get(decodeURIComponent(cell.getAttribute("href").slice(1)));
      if (at === undefined) continue;
      const { case: id, hardware, status, held: isHeld, cells: shown } = data.rows[at];
      const told = `${id}, ${hardware}: ${words(status)}${isHeld ? ", in quarantine" : ""}${shown.change ? `, ${shown.change}` : ""}`;
      cell.tabIndex = cell === cells[0] ? 0 : -1;
      cell.title = told;
      cell.setAttribute("aria-label", told);
      await rest();
    }
  }
  if (cells.length) {
    // One stop of the Tab key; arrows go from cell to cell.
    const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    $(".strip").addEventListener("keydown", (event) => {
      const at = cells.indexOf(event.target);
      if (at < 0 || !(event.key in STEPS)) return;
      event.preventDefault();
      let next = Math.min(Math.max(at + STEPS[event.key], 0), cells.length - 1);
      if (["ArrowDown", "ArrowUp"].includes(event.key)) next = across(at, STEPS[event.key]);
      cells[at].tabIndex = -1;
      cells[next].tabIndex = 0;
      cells[next].focus();
    });
    /** Return the cell that is nearest in the next line of cells. */
    const across = (at, way) => {
      const from = cells[at].getBoundingClientRect();
      const far = (one) => {
        const box = one.getBoundingClientRect();
        const down = way * (box.top - from.top);
        return down > 3 ? 1e4 * down + Math.abs(box.left - from.left) : Infinity;
      };
      let best = at, least = Infinity;
      cells.forEach((one, n) => { const cost = far(one); if (cost < least) [best, least] = [n, cost]; });
      return best;
    };
  }

  // --- the table --------------------------------------------------------------------------

  const form = $("#filters"), body = $("#table tbody");
  let table = null;
  if (body) {
    // The first rows are there already: they open at once, and say more as soon as the data is there.
    for (const opener of $$(".open", body)) opener.disabled = false;
    body.addEventListener("click", (event) => {
      const opener = event.target.closest(".open");
      if (opener) toggle(opener);
    });
  }
  async function toggle(opener) {
    const isOpen = opener.getAttribute("aria-expanded") === "true", made = opener.closest("tr");
    opener.setAttribute("aria-expanded", String(!isOpen));
    await arriving;
    const shown = made.nextElementSibling?.matches(".detail") ? made.nextElementSibling : null;
    if (isOpen) shown?.remove();
    else if (!shown && opener.getAttribute("aria-expanded") === "true") {
      const detail = element("tr", { class: "detail" }, element("td", { colspan: made.children.length }, ...details(made.dataset.at)));
      made.after(detail);
      drawn(detail);
    }
  }

  function tabulated() {
    const told = $("#told"), pages = $("#pages");
    const columns = $$("#table thead [data-column]");
    const choices = $$("select", form);
    const texts = once(() => data.rows.map((row) => `${row.case} ${row.hardware} ${row.status} ${words(row.status)}`.toLowerCase()));
    const state = { page: 0, sort: null, down: false };

    function matching() {
      const asked = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = choices.filter((choice) => choice.value);
      const found = [];
      data.rows.forEach((row, at) => {
        if (chosen.every((choice) => row[choice.name] === choice.value) && asked.every((word) => texts()[at].includes(word))) found.push(at);
      });
      if (state.sort) found.sort(order);
      return found;
    }
    function order(a, b) {
      const [x, y] = [a, b].map((at) => (data.rows[at].sorts[state.sort] !== undefined ? data.rows[at].sorts[state.sort] : data.rows[at][state.sort] ?? null));
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      const by = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return (state.down ? -by : by) || a - b;
    }

    function show(all = false) {
      const found = matching();
      const size = all ? MOST_PRINTED : PAGE;
      const count = Math.max(1, Math.ceil(found.length / size));
      state.page = all ? 0 : Math.min(state.page, count - 1);
      const shown = found.slice(state.page * size, (state.page + 1) * size);
      const there = $$("[data-at]", body).map((one) => Number(one.dataset.at));
      if (String(there) !== String(shown)) body.replaceChildren(...shown.map(row));
      const range = count > 1 ? `, ${counted(state.page * size + 1)}–${counted(state.page * size + shown.length)} shown` : "";
      told.textContent = found.length === data.rows.length
        ? `${counted(found.length)} ${found.length === 1 ? "case" : "cases"}${range}`
        : `${counted(found.length)} of ${counted(data.rows.length)} cases${range}`;
      pages.hidden = all || count < 2;
      $("span", pages).textContent = `${counted(state.page + 1)} of ${counted(count)}`;
      $$("button", pages).forEach((one) => { one.disabled = state.page + Number(one.dataset.by) < 0 || state.page + Number(one.dataset.by) >= count; });
    }

    function row(at) {
      const it = data.rows[at];
      const opener = element("button", { type: "button", class: "open", "aria-expanded": "false" }, element("span", {}, it.case));
      const name = address(at);
      const isElsewhere = document.getElementById(name)?.tagName === "ARTICLE";
      const made = element("tr", { id: isElsewhere ? null : name, "data-at": at }, element("th", { scope: "row", class: "mono" }, opener));
      for (const column of columns.slice(1)) {
        const name = column.dataset.column;
        const cell = element("td", { class: column.className || null });
        if (name === "status") cell.append(badge(it.status, it.held));
        else cell.append(it.cells[name] ?? it[name]);
        if (name === "rate" && it.waits) cell.append(element("small", {}, it.waits));
        if (name === "change" && it.status === "REGRESSED") cell.classList.add("slower");
        if (name === "change" && it.status === "IMPROVED") cell.classList.add("faster");
        made.append(cell);
      }
      made.append(element("td", { class: "wide spark" }, ...spark(at)));
      return made;
    }
    /** Show a case's row, opened, whatever is filtered. */
    function reveal(at) {
      let place = matching().indexOf(at);
      if (place < 0) {
        for (const field of [form.elements.q, ...choices]) field.value = "";
        place = matching().indexOf(at);
      }
      state.page = Math.floor(place / PAGE);
      show();
      const opener = $(`[data-at="${at}"] .open`, body);
      if (opener.getAttribute("aria-expanded") === "false") opener.click();
      opener.scrollIntoView({ block: "start" });
      opener.focus({ preventScroll: true });
    }

    function choose() {
      state.page = 0;
      show();
      keep();
    }
    /** Keep what is chosen in the address, so that it can be passed on. */
    function keep() {
      const chosen = new URLSearchParams();
      for (const field of [form.elements.q, ...choices]) if (field.value) chosen.set(field.name, field.value);
      if (state.sort) chosen.set("sort", (state.down ? "-" : "") + state.sort);
      const hash = String(chosen) ? `#${chosen}` : "#cases";
      if (hash !== (location.hash || "#cases")) window.history.replaceState(null, "", hash);
    }
    function recall() {
      if (!location.hash.includes("=") || /^#(case|cause)\//.test(location.hash)) return false;
      const asked = new URLSearchParams(location.hash.slice(1));
      for (const field of [form.elements.q, ...choices]) {
        field.value = asked.get(field.name) || "";
        if (field.value === "" && field.options) field.selectedIndex = 0;
      }
      const sort = asked.get("sort") || "";
      state.sort = columns.some((one) => one.dataset.column === sort.replace(/^-/, "")) ? sort.replace(/^-/, "") : null;
      state.down = sort.startsWith("-");
      mark();
      state.page = 0;
      show();
      return true;
    }
    function mark() {
      for (const column of columns) {
        if (column.dataset.column === state.sort) column.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else column.removeAttribute("aria-sort");
      }
    }

    for (const column of columns) {
      const sorter = $("button", column);
      sorter.disabled = false;
      sorter.addEventListener("click", () => {
        const name = column.dataset.column;
        const first = column.classList.contains("number"); // the largest is what is looked for
        if (state.sort !== name) Object.assign(state, { sort: name, down: first });
        else if (state.down === first) state.down = !first;
        else state.sort = null;
        mark();
        choose();
      });
    }
    for (const one of $$("[data-at]", body)) one.lastElementChild.append(...spark(one.dataset.at));
    form.hidden = false;
    form.addEventListener("input", choose);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(choose));
    pages.addEventListener("click", (event) => {
      if (!event.target.dataset.by) return;
      state.page += Number(event.target.dataset.by);
      show();
      $("#cases").focus();
      $("#cases").scrollIntoView();
    });
    addEventListener("hashchange", () => { if (recall()) $("#cases").scrollIntoView(); else visit(); });
    for (const link of $$(".counts a")) link.addEventListener("click", () => {
      if (location.hash === link.hash && recall()) $("#cases").scrollIntoView();
    });
    if (!recall()) show();
    else requestAnimationFrame(() => $("#cases").scrollIntoView());
    return { show, reveal };
  }

  function badge(status, isHeld) {
    return element("span", { class: `badge s-${words(status).replaceAll(" ", "-")}`.replace("no-baseline", "no_baseline") }, isHeld ? `(${words(status)})` : words(status));
  }

  function spark(at) {
    const series = data.series[at], { status } = data.rows[at];
    const y = values(series);
    if (y.length < 2) return [];
    const all = series.b ? [...y, series.b[0], series.b[2]] : y;
    const low = Math.min(...all), span = Math.max(...all) - low || 1;
    const high = (value) => 20 - 18 * (value - low) / span;
    const make = (name, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const svg = make("svg", { viewBox: "0 0 112 22", preserveAspectRatio: "none", "aria-hidden": "true" });
    if (series.b) svg.append(make("rect", { x: 0, width: 112, y: high(series.b[2]), height: Math.max(1, high(series.b[0]) - high(series.b[2])) }));
    const points = y.map((value, i) => `${(i * 108 / (y.length - 1)).toFixed(1)} ${high(value).toFixed(1)}`);
    svg.append(make("path", { d: `M${points.join("L")}` }));
    const [cx, cy] = points.at(-1).split(" ");
    svg.append(make("circle", { cx, cy, r: 2.2, class: status === "REGRESSED" ? "bad" : "" }));
    return [svg];
  }

  function details(at) {
    const it = data.details[at], series = data.series[at], parts = [];
    if (it.fault) parts.push(element("p", { class: "lead" }, `${it.fault[0]}: ${it.fault[1]}`));
    if (it.output) parts.push(element("pre", { tabindex: "0" }, it.output));
    if (series.d) {
      const label = `History of ${data.rows[at].case}, ${series.d.length} runs`;
      parts.push(element("figure", { class: "history" }, element("div", { class: "plot", "data-series": at, role: "img", "aria-label": label }), element("figcaption", { class: "legend" })));
    } else parts.push(element("p", { class: "muted" }, "There is no history of this case yet."));
    if (it.verdicts) parts.push(verdicts(it.verdicts));
    if (it.changes) parts.push(element("section", {}, element("h3", {}, "Changed in the environment since the baseline"), element("ul", { class: "changes" }, ...it.changes.map((text) => element("li", {}, text)))));
    if (it.remarks) parts.push(element("ul", { class: "remarks" }, ...it.remarks.map((text) => element("li", {}, text))));
    if (it.commands) parts.push(element("details", {}, element("summary", {}, "Commands"), commands(it.commands)));
    parts.push(element("p", { class: "muted small" }, element("a", { href: `#${encodeURI(address(at))}` }, "Address of this case"), ` · Run ${it.run}${it.test ? ` · ${it.test}` : ""}`));
    return parts;
  }
  function verdicts(rows) {
    const head = [["Metric"], ["Verdict"], ["This night", "number"], ["Baseline", "number"], ["Change", "number"], ["Why"]];
    return element("div", { class: "scroll" }, element("table", { class: "verdicts" },
      element("thead", {}, element("tr", {}, ...head.map(([text, kind]) => element("th", { scope: "col", class: kind }, text)))),
      element("tbody", {}, ...rows.map(([metric, status, value, base, change, , why]) => element("tr", {},
        element("td", {}, metric), element("td", {}, badge(status)),
        ...[value, base, change].map((text) => element("td", { class: "number" }, text)),
        element("td", { class: "why" }, why))))));
  }

  // --- paper ------------------------------------------------------------------------------

  let theme = null;
  function beforePrint() {
    if (isPrinting) return;
    isPrinting = true;
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    if (table) table.show(true);
    drawn(document);
  }
  function afterPrint() {
    if (!isPrinting) return;
    isPrinting = false;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    if (table) table.show();
    drawn(document);
  }
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);

  data = await arriving;
  table = form && tabulated();
  visit();
  for (const one of $$(".failure, .comparison")) {
    drawn(one);
    await rest();
  }
  await named();
  root.dataset.ready = "yes";
})();
