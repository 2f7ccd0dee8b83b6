"use strict";
(() => {
  const PAGE = 100;
  const MOST_PRINTED = 1000;
  const held = document.getElementById("data");
  const data = held ? JSON.parse(held.textContent) : null;
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
  /** Plotly reads a little HTML in texts; none of ours is any. */
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

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
    themed();
  });
  prefersDark.addEventListener("change", themed);
  function themed() {
    showTheme();
    redraw();
  }

  // --- figures ----------------------------------------------------------------------------

  /** Return the theme's colours as they are now. */
  function colours() {
    const probe = element("span");
    document.body.append(probe);
    const found = {};
    for (const name of ["page", "line", "ink", "soft", "accent", "bad", "good", "odd", "band", "other"]) {
      probe.style.color = `var(--${name})`;
      found[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    // Okabe and Ito's, of a lightness that each theme carries.
    found.series = isDark()
      ? ["#6cb8f0", "#ff9a5c", "#4fd0a5", "#e39bc6", "#e5b64a", "#9fa8ff", "#c9cdd2", "#f0e442"]
      : ["#0072b2", "#d55e00", "#008f68", "#b5568c", "#a87400", "#4b4fbf", "#5b636b", "#7a7a00"];
    return found;
  }
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const drawn = new Set();
  let isPrinting = false;

  function frame(c, more = {}) {
    const narrow = innerWidth < 560;
    const axis = { gridcolor: c.line, linecolor: c.line, zerolinecolor: c.line, tickcolor: c.line, color: c.soft, tickfont: { size: 12 }, title: { font: { size: 12 } }, automargin: true };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: c.soft },
      margin: { l: narrow ? 44 : 56, r: narrow ? 6 : 16, t: 22, b: 30 },
      hoverlabel: { bgcolor: c.page, bordercolor: c.line, font: { color: c.ink, size: 12 }, align: "left" },
      hovermode: "closest",
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      showlegend: false,
      legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", font: { color: c.ink, size: 12 } },
      ...rest,
      xaxis: { ...axis, ...xaxis },
      yaxis: { ...axis, ...yaxis },
    };
  }
  const SETTINGS = { displayModeBar: false, responsive: true };

  function unit(most) {
    for (const [name, scale] of [["s", 1e6], ["ms", 1e3], ["µs", 1]]) if (most >= scale) return [name, scale];
    return ["ns", 1e-3];
  }
  const sign = (ratio) => `${ratio < 1 ? "−" : "+"}${Math.abs(100 * (ratio - 1)).toFixed(1)}%`;
  const digits = (value) => String(Number(value.toPrecision(4)));

  function history(series, c) {
    const runs = data.walks[series.w].map((at) => data.runs[at]);
    const times = runs.map((run) => run[1]);
    const band = series.b;
    const [name, scale] = unit(Math.max(...series.y, ...(band || [])));
    const y = series.y.map((value) => value / scale);
    const odd = new Map(series.s || []);
    const bad = (at) => ["REGRESSED", "ERROR"].includes(odd.get(at));
    const text = y.map((value, at) =>
      plain(`${digits(value)} ${name}${odd.has(at) ? `, ${words(odd.get(at))}` : ""}`) +
      `<br>${plain(times[at].slice(0, 16).replace("T", " "))}<br>run ${plain(runs[at][0])}`);
    const shown = [...y, ...(band ? [band[0] / scale, band[2] / scale] : [])];
    const low = Math.min(...shown), high = Math.max(...shown);
    const room = (high - low || high || 1) * 0.14;
    const floor = low - room;
    const traces = [{
      type: "scatter", mode: y.length > 1 ? "lines+markers" : "markers", x: times, y, text, hoverinfo: "text",
      line: { color: c.accent, width: 1.3 },
      marker: {
        size: y.map((_, at) => (odd.has(at) ? 8 : y.length > 150 ? 3 : 5)),
        color: y.map((_, at) => (bad(at) ? c.bad : odd.has(at) ? c.page : c.accent)),
        symbol: y.map((_, at) => (bad(at) ? "square" : "circle")),
        opacity: 1,
        line: { width: y.map((_, at) => (odd.has(at) && !bad(at) ? 1.8 : 0)), color: y.map((_, at) => (odd.has(at) ? c.odd : c.accent)) },
      },
    }];
    if (series.e) traces.push({
      type: "scatter", mode: "markers", x: series.e.map(([at]) => times[at]), y: series.e.map(() => floor),
      text: series.e.map(([, at]) => data.words[at].slice(0, 8).map(plain).join("<br>") + (data.words[at].length > 8 ? `<br>and ${data.words[at].length - 8} more` : "")),
      hoverinfo: "text", cliponaxis: false,
      marker: { symbol: "triangle-up", size: 9, color: c.other },
    });
    const shapes = [], annotations = [];
    const span = (Date.parse(times.at(-1)) - Date.parse(times[0])) || 1;
    const share = (time) => (Date.parse(time) - Date.parse(times[0])) / span;
    const taken = [];
    const line = (time, style, label) => {
      const at = share(time);
      shapes.push({ type: "line", xref: "x", yref: "paper", x0: time, x1: time, y0: 0, y1: 1, line: style, layer: "below" });
      if (taken.some((other) => Math.abs(other - at) < (innerWidth < 560 ? 0.3 : 0.09))) return;
      taken.push(at);
      annotations.push({ xref: "x", yref: "paper", x: time, y: 1, yanchor: "bottom", xanchor: at < 0.12 ? "left" : at > 0.88 ? "right" : "center", text: plain(label), showarrow: false, font: { size: 11, color: style.color } });
    };
    if (band && times.length) {
      const [low, middle, high] = band.map((value) => value / scale);
      shapes.push({ type: "rect", xref: "paper", yref: "y", x0: 0, x1: 1, y0: low, y1: high, fillcolor: c.band, opacity: 0.16, line: { width: 0 }, layer: "below" });
      shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: middle, y1: middle, line: { color: c.band, width: 1 }, layer: "below" });
    }
    for (const [time, ratio] of series.m || []) {
      line(time, { color: ratio > 1 ? c.bad : c.good, width: 1.5 }, sign(ratio));
    }
    if (series.a && times.length && series.a[0] >= times[0] && series.a[0] <= times.at(-1)) {
      line(series.a[0], { color: c.good, width: 1.5, dash: "dash" }, "accepted");
    }
    return [traces, frame(c, {
      shapes, annotations,
      xaxis: { type: "date", showgrid: false, nticks: innerWidth < 560 ? 4 : 8, tickformat: span < 3 * 864e5 ? "%-d %b %H:%M" : "%-d %b", hoverformat: "%Y-%m-%d" },
      yaxis: { range: [floor, high + room], ticksuffix: ` ${name}`, nticks: 5, zeroline: false },
    })];
  }

  function legend(series) {
    const keys = [["k-night", "run"]];
    const statuses = new Set((series.s || []).map(([, status]) => status));
    const bad = ["REGRESSED", "ERROR"].filter((status) => statuses.delete(status));
    if (bad.length) keys.push(["k-bad", bad.map(words).join(", ")]);
    if (statuses.size) keys.push(["k-odd", [...statuses].map(words).join(", ")]);
    if (series.b) keys.push(["k-band", "baseline, and what is tolerated"]);
    if (series.a) keys.push(["k-accepted", `accepted ${series.a[0].slice(0, 10)}: ${series.a[1]}`]);
    if (series.e) keys.push(["k-changed", "environment changed"]);
    if (series.m) keys.push(["k-moved", "change point"]);
    return keys.map(([kind, text]) => element("span", {}, element("i", { class: kind }), text));
  }

  const COMPARED = {
    dots(figure, c) {
      const traces = figure.series.map((one, n) => ({
        type: "scatter", mode: "markers", name: plain(one.name), x: one.x, y: one.at,
        text: one.x.map((value, i) => `${plain(figure.rows[one.at[i]])}<br>${plain(one.name)}: × ${value}`), hoverinfo: "text",
        marker: { size: 10, color: c.series[n % 8], symbol: SYMBOLS[n % 8] },
      }));
      const narrow = innerWidth < 560;
      const most = narrow ? 24 : 60;
      const short = (label) => (label.length > most ? `${label.slice(0, most - 1)}…` : label);
      return [traces, frame(c, {
        showlegend: true,
        shapes: [{ type: "line", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { color: c.soft, width: 1.5 }, layer: "below" }],
        xaxis: { side: "top", tickangle: 0, ...logarithmic(traces.flatMap((t) => t.x).concat(1), "×") },
        yaxis: { tickvals: figure.rows.map((_, i) => i), ticktext: figure.rows.map((label) => plain(short(label))), range: [-0.6, figure.rows.length - 0.4], fixedrange: true },
        margin: { l: 10, r: 16, t: 30, b: 10 },
        legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", font: { color: c.ink, size: 12 } },
      }), 90 + 24 * figure.rows.length];
    },
    lines(figure, c) {
      const traces = figure.series.map((one, n) => ({
        type: "scatter", mode: "lines+markers", name: plain(one.name), x: one.x, y: one.y,
        text: one.x.map((x, i) => `${plain(one.name)}<br>${plain(figure.x)} ${x}: ${digits(one.y[i])}`), hoverinfo: "text",
        line: { color: c.series[n % 8], width: 1.6 }, marker: { size: 8, color: c.series[n % 8], symbol: SYMBOLS[n % 8] },
      }));
      const xs = [...new Set(figure.series.flatMap((one) => one.x))].sort((a, b) => a - b);
      if (figure.ideal) {
        const ends = [Math.min(...xs), Math.max(...xs)];
        traces.push({ type: "scatter", mode: "lines", name: "ideal", x: ends, y: ends, hoverinfo: "skip", line: { color: c.soft, width: 1.5, dash: "dot" } });
      }
      return [traces, frame(c, {
        showlegend: true,
        xaxis: { title: { text: plain(figure.x) }, ...logarithmic(xs), tickvals: xs, ticktext: xs.map(String), tickangle: 0 },
        yaxis: { title: { text: plain(figure.y) }, ...logarithmic(traces.flatMap((t) => t.y)) },
        margin: { l: 64, r: 16, t: 10, b: 40 },
        legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", font: { color: c.ink, size: 12 } },
      }), 340 + 20 * Math.ceil(traces.length / (innerWidth < 560 ? 1 : 3))];
    },
    roofline(figure, c) {
      const traces = figure.series.map((one, n) => ({
        type: "scatter", mode: "markers", name: plain(one.name), x: one.x, y: one.y.map((value) => value / 1e12),
        text: one.text.map((id, i) => `${plain(id)}<br>${digits(one.x[i])} FLOP/byte, ${digits(one.y[i] / 1e12)} TFLOP/s`), hoverinfo: "text",
        marker: { size: 8, color: c.series[n % 8], symbol: SYMBOLS[n % 8], opacity: 0.85 },
      }));
      const peaks = figure.peaks.map(([name, value]) => [name, value / 1e12]);
      const bandwidth = figure.bandwidth / 1e12;
      const ridges = peaks.map(([, peak]) => peak / bandwidth);
      const xs = figure.series.flatMap((one) => one.x).concat(ridges);
      const left = Math.min(...xs) / 2, right = Math.max(...xs) * 3;
      const top = Math.max(0, ...peaks.map(([, peak]) => peak));
      const roof = (x, y) => ({ type: "scatter", mode: "lines", x, y, hoverinfo: "skip", showlegend: false, line: { color: c.soft, width: 1.4 } });
      if (top) traces.unshift(roof([left, top / bandwidth], [left * bandwidth, top]));
      const levels = new Map();
      for (const [name, peak] of peaks) levels.set(peak, [...(levels.get(peak) || []), name]);
      const annotations = [...levels].map(([peak, names]) => ({ x: Math.log10(right), y: Math.log10(peak), xanchor: "right", yanchor: "bottom", showarrow: false, font: { color: c.soft, size: 11 }, text: plain(`${names.join(", ")} ${digits(peak)} TFLOP/s`) }));
      for (const [peak] of levels) traces.unshift(roof([peak / bandwidth, right], [peak, peak]));
      const ys = figure.series.flatMap((one) => one.y.map((value) => value / 1e12)).concat(top || 1);
      return [traces, frame(c, {
        showlegend: true, annotations,
        xaxis: { title: { text: "FLOP/byte" }, ...logarithmic([left, right], "", 1) },
        yaxis: { title: { text: "TFLOP/s" }, ...logarithmic(ys, "", 1.6) },
        margin: { l: 64, r: 16, t: 16, b: 40 },
        legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", font: { color: c.ink, size: 12 } },
      }), 400];
    },
  };
  /** Return round numbers for a logarithmic axis, and the axis's range about some values. */
  function logarithmic(values, suffix = "", by = 1.12) {
    const low = Math.min(...values) / by, high = Math.max(...values) * by;
    const tens = 10 ** Math.floor(Math.log10(low));
    let found = [];
    if (high / low < 4) {
      const step = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5].map((one) => one * tens * (low / tens > 5 ? 2 : 1)).find((one) => (high - low) / one <= (innerWidth < 560 ? 4 : 8)) || high;
      for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
    } else {
      const parts = high / low < 300 ? [1, 2, 5] : [1];
      for (let ten = tens; ten <= high; ten *= 10) found.push(...parts.map((part) => part * ten));
      found = found.filter((one) => one >= low && one <= high);
    }
    return {
      type: "log", zeroline: false, range: [Math.log10(low), Math.log10(high)],
      tickvals: found, ticktext: found.map((one) => round(one) + suffix),
    };
  }
  function round(value) {
    const told = Number(value.toPrecision(3));
    for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (told >= 10 * scale) return `${told / scale}${unit}`;
    return String(told);
  }
  function draw(plot) {
    if (!window.Plotly) return;
    const c = colours();
    let made;
    if (plot.dataset.series !== undefined) {
      const series = data.series[plot.dataset.series];
      if (!series.y) return;
      made = history(series, c);
      const caption = plot.parentElement.querySelector(".legend");
      if (caption && !caption.childElementCount) caption.append(...legend(series));
    } else {
      const figure = data.comparisons[plot.dataset.comparison];
      made = COMPARED[figure.kind](figure, c);
      plot.style.height = `${made[2]}px`;
    }
    if (isPrinting) made[1].width = 660;
    Plotly.react(plot, made[0], made[1], SETTINGS);
    drawn.add(plot);
  }
  function redraw() {
    for (const plot of drawn) {
      if (plot.isConnected) draw(plot);
      else drawn.delete(plot);
    }
  }
  const watcher = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting || one.target.offsetWidth === 0) continue;
      watcher.unobserve(one.target);
      draw(one.target);
    }
  }, { rootMargin: "300px" });
  // Plotly comes last in the page, so that everything else is there before it is read.
  const watch = (within) => window.Plotly && $$(".plot", within).forEach((plot) => watcher.observe(plot));

  for (const group of $$(".comparison")) {
    const pick = $(".pick", group);
    if (!pick) continue;
    const figures = $$(".compared", group);
    const choose = () => figures.forEach((figure) => { figure.hidden = figure.dataset.group !== $("select", pick).value; });
    pick.hidden = false;
    $("select", pick).addEventListener("change", choose);
    choose();
  }

  // --- the table --------------------------------------------------------------------------

  const form = $("#filters");
  const table = form && tabulated();

  function tabulated() {
    const body = $("#table tbody"), told = $("#told"), pages = $("#pages");
    const columns = $$("#table thead [data-column]");
    const choices = $$("select", form);
    const texts = data.rows.map((row) => `${row.case} ${row.hardware} ${row.status} ${words(row.status)}`.toLowerCase());
    const state = { page: 0, sort: null, down: false };

    function matching() {
      const asked = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = choices.filter((choice) => choice.value);
      const found = [];
      data.rows.forEach((row, at) => {
        if (chosen.every((choice) => row[choice.name] === choice.value) && asked.every((word) => texts[at].includes(word))) found.push(at);
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
      body.replaceChildren(...shown.map(row));
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
      const made = element("tr", {}, element("th", { scope: "row", class: "mono" }, opener));
      for (const column of columns.slice(1)) {
        const name = column.dataset.column;
        const cell = element("td", { class: column.className || null });
        if (name === "status") cell.append(badge(it.status, it.held));
        else cell.append(it.cells[name] ?? it[name]);
        if (name === "change" && it.status === "REGRESSED") cell.classList.add("slower");
        if (name === "change" && it.status === "IMPROVED") cell.classList.add("faster");
        made.append(cell);
      }
      made.append(element("td", { class: "wide spark" }, ...spark(data.series[at], it.status)));
      opener.addEventListener("click", () => toggle(made, opener, at));
      return made;
    }
    function toggle(made, opener, at) {
      const isOpen = opener.getAttribute("aria-expanded") === "true";
      opener.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) made.nextElementSibling.remove();
      else {
        const detail = element("tr", { class: "detail" }, element("td", { colspan: columns.length + 1 }, ...details(at)));
        made.after(detail);
        watch(detail);
      }
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
      if (!location.hash.includes("=")) return false;
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
    addEventListener("hashchange", () => { if (recall()) $("#cases").scrollIntoView(); });
    for (const link of $$(".counts a")) link.addEventListener("click", () => {
      if (location.hash === link.hash && recall()) $("#cases").scrollIntoView();
    });
    if (!recall()) show();
    else requestAnimationFrame(() => $("#cases").scrollIntoView());
    return { show };
  }

  function badge(status, isHeld) {
    return element("span", { class: `badge s-${words(status).replaceAll(" ", "-")}`.replace("no-baseline", "no_baseline") }, isHeld ? `(${words(status)})` : words(status));
  }

  function spark(series, status) {
    const y = series.y || [];
    if (y.length < 2) return [];
    const all = series.b ? [...y, series.b[0], series.b[2]] : y;
    const low = Math.min(...all), span = Math.max(...all) - low || 1;
    const at = (value) => 20 - 18 * (value - low) / span;
    const make = (name, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const svg = make("svg", { viewBox: "0 0 112 22", preserveAspectRatio: "none", "aria-hidden": "true" });
    if (series.b) svg.append(make("rect", { x: 0, width: 112, y: at(series.b[2]), height: Math.max(1, at(series.b[0]) - at(series.b[2])) }));
    const points = y.map((value, i) => `${(i * 108 / (y.length - 1)).toFixed(1)} ${at(value).toFixed(1)}`);
    svg.append(make("path", { d: `M${points.join("L")}` }));
    const [cx, cy] = points.at(-1).split(" ");
    svg.append(make("circle", { cx, cy, r: 2.2, class: status === "REGRESSED" ? "bad" : "" }));
    return [svg];
  }

  function details(at) {
    const it = data.details[at], series = data.series[at], parts = [];
    if (it.fault) parts.push(element("p", { class: "lead" }, `${it.fault[0]}: ${it.fault[1]}`));
    if (it.output) parts.push(element("pre", { tabindex: "0" }, it.output));
    if (series.y) {
      const label = `History of ${data.rows[at].case}, ${series.y.length} runs`;
      parts.push(element("figure", { class: "history" }, element("div", { class: "plot", "data-series": at, role: "img", "aria-label": label }), element("figcaption", { class: "legend" })));
    } else parts.push(element("p", { class: "muted" }, "There is no history of this case yet."));
    if (it.verdicts) parts.push(verdicts(it.verdicts));
    if (it.changes) parts.push(element("section", {}, element("h4", {}, "Changed in the environment since the baseline"), element("ul", { class: "changes" }, ...it.changes.map((text) => element("li", {}, text)))));
    if (it.remarks) parts.push(element("ul", { class: "remarks" }, ...it.remarks.map((text) => element("li", {}, text))));
    parts.push(element("p", { class: "muted small" }, `Run ${it.run}${it.test ? ` · ${it.test}` : ""}`));
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
    $$(".failure .plot, .compared:not([hidden]) .plot").forEach((plot) => { watcher.unobserve(plot); draw(plot); });
  }
  function afterPrint() {
    if (!isPrinting) return;
    isPrinting = false;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    if (table) table.show();
    redraw();
  }
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);

  showTheme();
  if (document.readyState === "complete") watch(document);
  else addEventListener("load", () => watch(document));
})();
