/** Charts as SVG.  Colours are the page's, by class, so that a theme or paper needs no redrawing. */
const charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const MARKS = {
    circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z",
    square: "M-3.6-3.6H3.6V3.6H-3.6Z",
    diamond: "M0-5L5 0L0 5L-5 0Z",
    triangle: "M0-4.6L4.8 3.7H-4.8Z",
    cross: "M-1.6-4.8H1.6V-1.6H4.8V1.6H1.6V4.8H-1.6V1.6H-4.8V-1.6H-1.6Z",
    down: "M0 4.6L4.8-3.7H-4.8Z",
    bar: "M-1.8-5H1.8V5H-1.8Z",
    flat: "M-5-1.8H5V1.8H-5Z",
  };
  const SYMBOLS = Object.keys(MARKS);
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const HOUR = 36e5, DAY = 24 * HOUR;
  const LETTER = 6.7; // pixels of one, on average

  function make(name, attributes, ...children) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // --- axes: where a value lies between 0 and 1, and the values that are named ---------------

  /** Return an axis of plain numbers; ``name`` writes one. */
  function linear(low, high, most, name) {
    const rough = (high - low) / most || 1, ten = 10 ** Math.floor(Math.log10(rough));
    const step = ten * ([1, 2, 5].find((one) => one * ten >= rough) ?? 10);
    const ticks = [];
    for (let at = Math.ceil(low / step); at * step <= high; at++) ticks.push(at * step);
    return { place: (value) => (value - low) / (high - low || 1), ticks: ticks.map((value) => [value, name(value)]) };
  }
  /** Return a logarithmic axis about some values, with room of a factor on both sides. */
  function logarithmic(values, most, name, by = 1.12) {
    const low = Math.min(...values) / by, high = Math.max(...values) * by;
    let ticks = [];
    if (high / low < 4) ticks = linear(low, high, most, String).ticks.map(([value]) => value).filter((value) => value > 0);
    else {
      const parts = [[1, 2, 5], [1]].find((some) => some.length * Math.log10(high / low) <= most) ?? [1];
      const every = Math.max(1, Math.ceil(Math.log10(high / low) / most));
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every) ticks.push(...parts.map((part) => part * 10 ** power));
      ticks = ticks.filter((value) => value >= low && value <= high);
    }
    const place = (value) => Math.log(value / low) / Math.log(high / low);
    return { place, ticks: ticks.map((value) => [value, name(Number(value.toPrecision(3)))]) };
  }
  /** Return an axis of times, which are milliseconds since 1970, UTC. */
  function time(low, high, most) {
    const span = high - low || DAY;
    const steps = [HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, ...[1, 2, 4, 7, 14, 28, 56, 91, 182, 365].map((days) => days * DAY)];
    const step = steps.find((one) => span / one <= most) ?? 730 * DAY;
    const ticks = [];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      const when = new Date(at);
      const day = `${when.getUTCDate()} ${MONTHS[when.getUTCMonth()]}`;
      const clock = `${String(when.getUTCHours()).padStart(2, "0")}:00`;
      ticks.push([at, step < DAY ? `${day} ${clock}` : span > 400 * DAY ? `${day} ${when.getUTCFullYear()}` : day]);
    }
    return { place: (value) => (value - low) / span, ticks };
  }
  /** Return an axis of named rows, the first one lowest. */
  function rows(names) {
    return { place: (value) => (value + 0.6) / (names.length + 0.2), ticks: names.map((name, at) => [at, name]), isNamed: true };
  }

  // --- drawing -------------------------------------------------------------------------------

  /**
   * Draw a chart into an element, in place of what is there.
   *
   * ``bands`` have ``low`` and ``high``, ``rules`` an ``x`` or a ``y`` and perhaps a ``label``,
   * ``lines`` ``points`` of [x, y], ``dots`` ``points`` of [x, y, text] and a ``mark``, or all of
   * them one ``round`` stroke of so many pixels; each has a ``class``.  ``width`` is in pixels.
   */
  function draw(holder, chart, width) {
    const { x, y, height, title = ["", ""] } = chart;
    const most = Math.floor(width * 0.4 / LETTER);
    const short = (name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
    const left = 12 + LETTER * Math.max(0, ...y.ticks.map(([, name]) => short(name).length)) + (title[1] ? 16 : 0);
    const box = { left, right: width - 14, top: 20, bottom: height - (title[0] ? 40 : 24) };
    const atX = (value) => box.left + x.place(value) * (box.right - box.left);
    const atY = (value) => box.bottom - y.place(value) * (box.bottom - box.top);
    const near = (value) => value.toFixed(1);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    const put = (name, attributes, ...children) => svg.append(make(name, attributes, ...children));
    const write = (text, attributes) => put("text", attributes, text);

    for (const [value, name] of y.ticks) {
      if (!y.isNamed || x.ticks.length) put("path", { class: "grid", d: `M${box.left} ${near(atY(value))}H${box.right}` });
      write(short(name), { x: box.left - 7, y: near(atY(value) + 4), class: "tick end" });
    }
    let taken = -Infinity;
    for (const [value, name] of x.ticks) {
      const at = atX(value), half = name.length * LETTER / 2;
      if (at - half < taken || at + half > width) continue;
      taken = at + half + 6;
      put("path", { class: "grid", d: `M${near(at)} ${box.bottom}v5` });
      write(name, { x: near(at), y: box.bottom + 17, class: "tick middle" });
    }
    if (title[0]) write(title[0], { x: (box.left + box.right) / 2, y: height - 4, class: "tick middle" });
    if (title[1]) write(title[1], { x: 0, y: 0, transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, class: "tick middle" });

    for (const band of chart.bands ?? []) put("rect", { class: band.class, x: box.left, y: near(atY(band.high)), width: near(box.right - box.left), height: near(Math.max(1, atY(band.low) - atY(band.high))) });
    const labels = [];
    for (const rule of chart.rules ?? []) {
      const across = rule.x === undefined;
      put("path", { class: `rule ${rule.class}`, d: across ? `M${box.left} ${near(atY(rule.y))}H${box.right}` : `M${near(atX(rule.x))} ${box.top}V${box.bottom}` });
      if (!rule.label) continue;
      const half = rule.label.length * LETTER / 2;
      const at = Math.min(Math.max(across ? box.right - half : atX(rule.x), box.left + half), box.right - half);
      const level = across ? atY(rule.y) - 4 : box.top - 6;
      if (labels.some(([one, reach, other]) => Math.abs(one - at) < reach + half && Math.abs(other - level) < 12)) continue;
      labels.push([at, half + 6, level]);
      write(rule.label, { x: near(at), y: near(level), class: `tick middle ${rule.class}` });
    }
    for (const line of chart.lines ?? []) put("path", { class: `line ${line.class}`, d: `M${line.points.map(([a, b]) => `${near(atX(a))} ${near(atY(b))}`).join("L")}` });
    const places = [];
    for (const dots of chart.dots ?? []) {
      const group = make("g", { class: `dots ${dots.class}` });
      for (const [a, b, text] of dots.points) {
        const at = [atX(a), atY(b)];
        if (text) places.push([...at, text]);
        if (!dots.round) group.append(make("path", { d: MARKS[dots.mark ?? "circle"], transform: `translate(${near(at[0])} ${near(at[1])}) scale(${dots.size ?? 1})` }));
      }
      const strokes = () => dots.points.map(([a, b]) => `M${near(atX(a))} ${near(atY(b))}h0`).join("");
      if (dots.round) group.append(make("path", { class: "round", "stroke-width": dots.round, d: strokes() }));
      svg.append(group);
    }
    holder.replaceChildren(svg);
    if (places.length) hover(holder, svg, places, width);
  }

  /** Say what the point nearest to the pointer is. */
  function hover(holder, svg, places, width) {
    const told = document.createElement("div"), ring = make("circle", { class: "ring", r: 7, visibility: "hidden" });
    told.className = "told";
    told.hidden = true;
    holder.append(told);
    svg.append(ring);
    const hide = () => { told.hidden = true; ring.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), scale = width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let best = null, least = 40 ** 2;
      for (const place of places) {
        const far = (place[0] - x) ** 2 + (place[1] - y) ** 2;
        if (far < least) [best, least] = [place, far];
      }
      if (!best) return hide();
      for (const [name, value] of [["cx", best[0]], ["cy", best[1]], ["visibility", "visible"]]) ring.setAttribute(name, value);
      told.textContent = best[2];
      told.hidden = false;
      const half = told.offsetWidth / 2;
      told.style.left = `${Math.min(Math.max(best[0] / scale, half), holder.clientWidth - half)}px`;
      told.style.top = `${best[1] / scale}px`;
    });
  }

  /** Return a mark alone, for a legend. */
  const mark = (name, kind) => make("svg", { viewBox: "-6 -6 12 12", class: `dots ${kind}`, "aria-hidden": "true" }, make("path", { d: MARKS[name] }));

  return { draw, linear, logarithmic, time, rows, mark, SYMBOLS };
})();
