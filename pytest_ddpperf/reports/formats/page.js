"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  // Names reach the page as text alone: nothing here reads HTML.
  function fill(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    for (const child of children) if (child !== null) made.append(child);
    return made;
  }
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // ---- light and dark
  const themes = ["system", "light", "dark"];
  const theme = byId("theme");
  function setTheme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    try { localStorage.setItem("ddpperf-theme", name); } catch { /* a page without storage forgets it */ }
  }
  let kept = null;
  try { kept = localStorage.getItem("ddpperf-theme"); } catch { /* the same */ }
  setTheme(themes.includes(kept) ? kept : "system");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "system";
    setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
  });

  // ---- the data, read when it is first needed
  let read = null;
  const data = () => (read ??= JSON.parse(byId("data").textContent));

  // ---- sorting and filtering
  const body = document.querySelector("#table tbody");
  const rows = body ? [...body.rows] : [];
  const entries = [...document.querySelectorAll(".entry")];

  function keyOf(row, column) {
    const cell = row.querySelectorAll("th, td:not(.drawn)")[column];
    if (cell.dataset.key !== undefined) return Number(cell.dataset.key);
    if (!cell.classList.contains("number")) return cell.textContent.trim();
    const value = parseFloat(cell.textContent.trim().replace(/^>|,/g, "")); // the number that a cell begins with
    return Number.isNaN(value) ? null : value;
  }
  function compare(a, b) {
    if (typeof a === "number") return a - b;
    return a.localeCompare(b, undefined, { numeric: true });
  }
  function sortBy(header, headers) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const column = headers.indexOf(header);
    const keyed = rows.map((row) => [keyOf(row, column), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is unknown comes last
      return descending ? compare(b, a) : compare(a, b);
    });
    body.append(...keyed.map(([, row]) => row));
  }
  const headers = [...document.querySelectorAll("#table thead th:not(.plain)")];
  for (const header of headers) header.querySelector("button").addEventListener("click", () => sortBy(header, headers));

  const names = (row) => [...row.querySelectorAll("th, td:not(.number, .drawn)")].map((cell) => cell.textContent).join(" ");
  const form = byId("filter");
  function filter() {
    const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const boxes = [...form.querySelectorAll("input[type=checkbox]")];
    const verdicts = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    rows.forEach((row, i) => {
      const text = `${names(row)} ${row.dataset.search}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || !verdicts.has(row.dataset.verdict);
      entries[i].hidden = row.hidden;
    });
    byId("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
  }
  if (form) {
    form.hidden = false;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  // ---- details, made when they are first opened
  function table(found) {
    const last = found.headers.length - found.right;
    const kind = (i) => (i < found.left || i >= last ? "words" : "number");
    const made = el("table", {},
      found.caption ? el("caption", {}, found.caption) : null,
      el("thead", {}, el("tr", {}, ...found.headers.map((text, i) => el("th", { scope: "col", class: kind(i) }, text)))),
      fill(document.createElement("tbody"), {}, found.rows.map((row) => el("tr", {},
        ...row.map((text, i) => (i < Math.min(1, found.left) ? el("th", { scope: "row", class: "words" }, text) : el("td", { class: kind(i) }, text)))))));
    return wide(made, found.caption || found.headers[0]);
  }
  const LONG = 16; // rows of a table that is open from the start
  function folded(found) {
    if (found.rows.length <= LONG) return table(found);
    return el("details", {}, el("summary", {}, `${found.caption} (${found.rows.length} rows)`), table(found));
  }
  const wide = (inner, name) => el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": name }, inner);
  function facts(found) {
    return el("dl", {}, ...found.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  }
  function lines(found) {
    return found.length === 1 ? el("p", {}, found[0]) : el("ul", {}, ...found.map((text) => el("li", {}, text)));
  }
  function addBlocks(parent, numbers) {
    let charts = null;
    const before = drawn.length;
    for (const block of numbers.map((number) => data().blocks[number])) {
      if (block.chart === undefined) charts = null;
      else if (!charts) parent.append((charts = el("div", { class: "charts" })));
      try {
        if (charts) addChart(charts, data().charts[block.chart]);
        else addBlock(parent, block);
      } catch (error) { // those that follow are shown all the same
        (charts ?? parent).append(failed(error));
      }
    }
    for (const [figure, render] of drawn.slice(before)) { // once all are there, which decides how wide each is
      try {
        render();
      } catch (error) {
        figure.replaceWith(failed(error));
      }
    }
  }
  const failed = (error) => el("p", {}, `This part cannot be shown: ${error.message}`);
  function addBlock(parent, block) {
    const made = el("div", { class: "block" });
    if (block.table) {
      made.append(folded(block.table));
      if (block.table.notes.length) made.append(lines(block.table.notes));
    } else made.append(block.facts ? facts(block.facts) : lines(block.lines));
    parent.append(made);
  }
  function open(entry) {
    if (entry.dataset.made) return;
    entry.dataset.made = "yes";
    const inside = el("div", { class: "body" });
    entry.append(inside);
    for (const section of data().entries[entries.indexOf(entry)]) {
      inside.append(el("h4", {}, section.title));
      addBlocks(inside, section.blocks);
    }
  }
  for (const entry of entries) entry.addEventListener("toggle", () => { if (entry.open) open(entry); });
  function follow() {
    const target = location.hash ? byId(decodeURIComponent(location.hash.slice(1))) : null;
    if (target?.classList.contains("entry")) {
      target.hidden = false;
      target.open = true;
      open(target);
      target.scrollIntoView();
      target.querySelector("summary").focus({ preventScroll: true });
    }
  }
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => { // the same place once more changes no hash
    const link = event.target.closest?.("a[href^='#entry-']");
    if (link && link.getAttribute("href") === location.hash) follow();
  });

  // ---- charts
  const MARKS = [
    (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    (x, y, r) => `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`,
    (x, y, r) => `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z`,
  ];
  const DASHES = ["none", "7 3", "2 3", "9 3 2 3"];
  const MANY = 8; // series that one can tell apart
  const BANDED = 6; // points of a line from which their intervals are a band
  const MARKED = 60; // points of a line that have marks
  let number = 0;

  const colour = (i) => `var(--c${i % 8})`;
  function text(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 0.001) return String(Number(value.toPrecision(2)));
    return size >= 99.95 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  }
  const withUnit = (value, axis) => `${text(value)} ${axis.unit}`.trim();
  const label = (axis) => (axis.unit ? `${axis.name}, ${axis.unit}` : axis.name);
  function points(series) {
    return series.y.map((y, i) => ({
      x: Array.isArray(series.x) ? series.x[i] : series.x + i,
      y,
      low: series.low?.[i] ?? null,
      high: series.high?.[i] ?? null,
    }));
  }
  function placeText(chart, x) {
    return chart.x.labels ? chart.x.labels[x] ?? String(x) : withUnit(x, chart.x);
  }
  function pointText(chart, series, point) {
    const ends = point.low === null && point.high === null ? "" : ` [${point.low === null ? "" : text(point.low)}, ${point.high === null ? "" : text(point.high)}]`;
    return `${series.name}, ${chart.x.name} ${placeText(chart, point.x)}: ${withUnit(point.y, chart.y)}${ends}`.replace(",  ", ", ");
  }

  function addChart(parent, chart) {
    const id = `chart-${(number += 1)}`;
    const every = [...chart.series, ...chart.references];
    const many = chart.style === "lines" && chart.series.length > MANY;
    const figure = el("figure", { "data-kind": chart.kind },
      el("figcaption", { id: `${id}-title` }, chart.title, chart.subject ? el("small", {}, chart.subject) : null), key(chart, many));
    const holder = draw("svg", { role: "img", "aria-labelledby": `${id}-title ${id}-desc` });
    figure.append(holder);
    if (chart.note) figure.append(el("p", {}, chart.note));
    const shown = el("details", {}, el("summary", {}, "Data of this chart"));
    shown.addEventListener("toggle", () => { if (shown.open && shown.children.length === 1) shown.append(numbers(chart, every)); });
    figure.append(shown);
    parent.append(figure);
    if (chart.cut) figure.insertBefore(el("p", {}, chart.cut), shown);
    const render = () => {
      holder.replaceChildren(draw("title", {}, chart.title), draw("desc", { id: `${id}-desc` }, description(chart, many)));
      const width = Math.max(260, Math.round(figure.clientWidth || 640));
      const sideways = chart.x.labels && !chart.x.name;
      (sideways ? drawSideways : drawUpright)(holder, chart, width, many, id);
    };
    drawn.push([figure, render]);
  }
  const drawn = [];
  let wait = 0;
  addEventListener("resize", () => {
    clearTimeout(wait);
    wait = setTimeout(() => { for (const [figure, render] of drawn) if (figure.clientWidth) render(); }, 150);
  });

  function description(chart, many) {
    const told = many ? [] : chart.series.map((series) => {
      const [low, high] = extent(series.y);
      const range = low === high ? withUnit(low, chart.y) : `${text(low)} to ${withUnit(high, chart.y)}`;
      return `${series.name}: ${series.y.length} ${series.y.length === 1 ? "point" : "points"}, ${range}`;
    });
    const beside = chart.references.length ? `, compared with ${chart.references.map((each) => each.name).join(", ")}` : "";
    return `${label(chart.y)}${chart.x.name ? ` by ${label(chart.x)}` : ""}; ${many ? `${chart.series.length} lines` : told.join("; ")}${beside}. The data are in a table below.`;
  }
  function key(chart, many) {
    const swatch = (...shapes) => draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, ...shapes);
    const items = [];
    if (many) {
      items.push(el("li", {}, swatch(draw("path", { d: "M1 6H21", class: "line", style: `stroke: ${colour(0)}` })), `${chart.series.length} lines, ${chart.series[0].name} to ${chart.series.at(-1).name}`));
    } else {
      chart.series.forEach((series, i) => items.push(el("li", {}, swatch(
        chart.style === "lines" ? draw("path", { d: "M1 6H21", class: "line", style: `stroke: ${colour(i)}; stroke-dasharray: ${DASHES[(i >> 2) % 4]}` }) : null,
        draw("path", { d: MARKS[i % 4](11, 6, 4), style: `fill: ${colour(i)}` })), series.name)));
    }
    chart.references.forEach((series, i) => items.push(el("li", {}, swatch(draw("path", { d: "M1 6H21", class: "reference", style: `stroke: ${referenceColour(chart, i)}` })), series.name)));
    return el("ul", { class: "key" }, ...items);
  }
  function referenceColour(chart, i) {
    const own = chart.references[i].of ?? -1;
    return own < 0 ? "var(--soft)" : colour(own);
  }
  function numbers(chart, every) {
    const ends = every.some((series) => series.low || series.high);
    const first = chart.x.name ? label(chart.x) : "benchmark";
    const found = { caption: "", left: 2, right: 0, headers: ["series", first, label(chart.y), ...(ends ? ["low", "high"] : [])], rows: [], notes: [] };
    for (const series of every) {
      for (const point of points(series)) {
        const sides = ends ? [point.low, point.high].map((end) => (end === null ? "-" : String(end))) : [];
        found.rows.push([series.name, chart.x.labels ? placeText(chart, point.x) : String(point.x), String(point.y), ...sides]);
      }
    }
    return table({ ...found, caption: "", name: chart.title });
  }

  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 10 * power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
    return found;
  }
  function extent(values) { // by a loop: a call has room for only so many arguments
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return [low, high];
  }

  function drawUpright(holder, chart, width, many, id) {
    const height = Math.round(Math.min(300, Math.max(200, width * 0.5)));
    const [bottom, top] = chart.shown;
    const marks = ticks(bottom, top, 5);
    const left = 12 + 7 * Math.max(...marks.map((value) => text(value).length)), right = 14, above = 28, below = 42;
    const xs = [...chart.series, ...chart.references].flatMap((series) => points(series).map((point) => point.x));
    let [first, last] = extent(xs);
    if (chart.x.labels) [first, last] = [-0.4, chart.x.labels.length - 0.6];
    if (first === last) [first, last] = [first - 0.5, last + 0.5];
    const onX = chart.x.log ? Math.log : Number;
    const inset = chart.x.labels ? 0 : chart.style === "points" ? 20 : 10;
    const x = (value) => left + inset + ((onX(value) - onX(first)) / (onX(last) - onX(first))) * (width - left - right - 2 * inset);
    const y = (value) => height - below - ((value - bottom) / (top - bottom)) * (height - above - below);
    const at = (value) => Math.round(value * 10) / 10;
    holder.setAttribute("viewBox", `0 0 ${width} ${height}`);

    const frame = draw("g", { "aria-hidden": "true" });
    for (const value of marks) {
      frame.append(draw("path", { d: `M${left} ${at(y(value))}H${width - right}`, class: "grid" }),
        draw("text", { x: left - 6, y: at(y(value)) + 4, "text-anchor": "end" }, text(value)));
    }
    frame.append(draw("path", { d: `M${left} ${height - below}H${width - right}`, class: "axis" }),
      draw("text", { x: 0, y: 12 }, label(chart.y)),
      draw("text", { x: width - right, y: height - 6, "text-anchor": "end" }, label(chart.x)));
    for (const [value, said] of places(chart, xs, first, last, width - left - right)) {
      const half = 3.7 * said.length;
      frame.append(draw("text", { x: at(Math.min(Math.max(x(value), half), width - half)), y: height - below + 17, "text-anchor": "middle" }, said));
    }
    holder.append(frame, draw("clipPath", { id: `${id}-clip` }, draw("rect", { x: left - 6, y: above - 6, width: width - left - right + 12, height: height - above - below + 10 })));
    const inside = draw("g", { "clip-path": `url(#${id}-clip)` });
    holder.append(inside);

    const band = (found, fill) => {
      if (!found.some((point) => point.low !== null && point.high !== null)) return [];
      const ends = [...found.map((p) => `${at(x(p.x))} ${at(y(p.low ?? p.y))}`), ...found.toReversed().map((p) => `${at(x(p.x))} ${at(y(p.high ?? p.y))}`)];
      return [draw("path", { d: `M${ends.join("L")}Z`, class: "band", style: `fill: ${fill}` })];
    };
    chart.references.forEach((series, i) => {
      const found = points(series), stroke = referenceColour(chart, i);
      inside.append(...band(found, stroke));
      const only = found.length === 1 || found.every((point) => point.x === found[0].x);
      const d = only ? `M${left} ${at(y(found[0].y))}H${width - right}` : `M${found.map((p) => `${at(x(p.x))} ${at(y(p.y))}`).join("L")}`;
      inside.append(draw("path", { d, class: "reference", style: `stroke: ${stroke}` }, draw("title", {}, series.name)));
    });
    const beside = chart.style === "points" && chart.series.length > 1 ? Math.min(7, (width - left - right) / (chart.x.labels?.length ?? last - first + 1) / (chart.series.length + 1)) : 0;
    chart.series.forEach((series, i) => {
      const found = points(series), stroke = colour(many ? 0 : i);
      const shift = beside * (i - (chart.series.length - 1) / 2);
      const banded = chart.style === "lines" && found.length >= BANDED;
      if (banded) inside.append(...band(found, stroke));
      if (chart.style === "lines") {
        inside.append(draw("path", { d: `M${found.map((p) => `${at(x(p.x))} ${at(y(p.y))}`).join("L")}`, class: many ? "line many" : "line", style: `stroke: ${stroke}; stroke-dasharray: ${many ? "none" : DASHES[(i >> 2) % 4]}` }, draw("title", {}, series.name)));
      }
      const marked = !(many && found.length > 1) && (chart.style !== "lines" || found.length <= MARKED);
      for (const point of found) {
        const place = at(x(point.x) + shift);
        if (!banded && (point.low !== null || point.high !== null)) {
          const foot = at(y(point.low ?? point.y)), head = at(y(point.high ?? point.y));
          inside.append(draw("path", { d: `M${place} ${foot}V${head}M${place - 3} ${foot}h6M${place - 3} ${head}h6`, class: "whisker", style: `stroke: ${stroke}` }));
        }
        if (marked) inside.append(draw("path", { d: MARKS[i % 4](place, at(y(point.y)), 3.5), class: "mark", style: `fill: ${stroke}` }, draw("title", {}, pointText(chart, series, point))));
      }
    });
  }
  // The places of an axis that have words: as many as there is room for.
  function places(chart, xs, first, last, room) {
    if (chart.x.labels) {
      const longest = Math.max(...chart.x.labels.map((each) => each.length));
      const every = Math.ceil(chart.x.labels.length / Math.max(1, Math.floor(room / (7 * longest + 12))));
      return chart.x.labels.map((each, i) => [i, each]).filter(([i]) => i % every === 0);
    }
    const own = [...new Set(xs)].sort((a, b) => a - b);
    if (own.length <= Math.min(12, room / 45)) return own.map((value) => [value, text(value)]);
    if (chart.x.log) return own.filter((_, i) => i % Math.ceil(own.length / 6) === 0).map((value) => [value, text(value)]);
    return ticks(first, last, Math.max(2, Math.min(8, room / 70))).filter((value) => Number.isInteger(value) || last - first < 2).map((value) => [value, text(value)]);
  }

  function drawSideways(holder, chart, width, many, id) {
    const labels = chart.x.labels;
    const room = Math.min(width * 0.4, 14 + 7.2 * Math.max(...labels.map((each) => each.length)));
    const letters = Math.floor((room - 12) / 7.2);
    const left = Math.round(room), right = 22, above = 6, below = 40, step = 18 + 11 * chart.series.length;
    const height = above + below + step * labels.length;
    const [low, high] = chart.shown;
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const at = (value) => Math.round(value * 10) / 10;
    holder.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const frame = draw("g", { "aria-hidden": "true" });
    for (const value of ticks(low, high, Math.max(2, Math.min(6, (width - left) / 80)))) {
      frame.append(draw("path", { d: `M${at(x(value))} ${above}V${height - below}`, class: "grid" }),
        draw("text", { x: at(x(value)), y: height - below + 16, "text-anchor": "middle" }, text(value)));
    }
    frame.append(draw("text", { x: width - 2, y: height - 5, "text-anchor": "end" }, label(chart.y)));
    labels.forEach((each, i) => frame.append(draw("text", { x: left - 8, y: above + step * (i + 0.5) + 4, "text-anchor": "end" }, each.length > letters ? `${each.slice(0, Math.max(1, letters - 1))}\u2026` : each, draw("title", {}, each))));
    holder.append(frame, draw("clipPath", { id: `${id}-clip` }, draw("rect", { x: left - 5, y: 0, width: width - left - right + 10, height: height - below })));
    const inside = draw("g", { "clip-path": `url(#${id}-clip)` });
    holder.append(inside);
    chart.series.forEach((series, i) => {
      for (const point of points(series)) {
        const told = draw("title", {}, pointText(chart, series, point));
        const y = above + step * (point.x + (i + 1) / (chart.series.length + 1));
        if (point.low !== null || point.high !== null) {
          const [from, to] = [at(x(point.low ?? point.y)), at(x(point.high ?? point.y))];
          inside.append(draw("path", { d: `M${from} ${y}H${to}M${from} ${y - 3}v6M${to} ${y - 3}v6`, class: "whisker", style: `stroke: ${colour(i)}` }));
        }
        inside.append(draw("path", { d: MARKS[i % 4](at(x(point.y)), y, 4), class: "mark", style: `fill: ${colour(i)}` }, told));
      }
    });
  }

  // ---- what concerns several rows, once it comes into view
  const parts = [...document.querySelectorAll(".part")];
  const seen = new IntersectionObserver((found) => {
    for (const each of found) {
      if (!each.isIntersecting) continue;
      seen.unobserve(each.target);
      addBlocks(each.target, data().sections[parts.indexOf(each.target)].blocks);
    }
  }, { rootMargin: "600px" });
  for (const part of parts) seen.observe(part);
  follow();
})();
