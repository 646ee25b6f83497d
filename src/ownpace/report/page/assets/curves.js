"use strict";
/* Curves of accuracy and loss, drawn as SVG. Names come from foreign folders: they are only ever set as text. */

function node(kind, attributes, parent) {
  // Made from markup that holds no foreign text: an SVG element's own name is an address, and this page has none.
  const made = document.createElement("template");
  made.innerHTML = kind === "svg" ? "<svg></svg>" : `<svg><${kind}></${kind}></svg>`;
  const element = kind === "svg" ? made.content.firstChild : made.content.firstChild.firstChild;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (parent) parent.append(element);
  return element;
}

function element(kind, attributes, text) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function swatch(run) {
  const svg = element("span", {class: "swatch"});
  svg.innerHTML = "<svg viewBox='0 0 22 8' class=swatch><path d='M1 4H21'/></svg>";
  const path = svg.querySelector("path");
  path.style.setProperty("--c", run.colour);
  if (run.dash) path.setAttribute("stroke-dasharray", run.dash);
  return svg.firstChild;
}

/* Round numbers that divide a range into about so many parts. */
function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.8);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return `${+value.toPrecision(4)}`;
}

const UNITS = [[7200, 3600, "h"], [120, 60, "min"], [0.1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"]];

/* A time; `among` is the largest of those that it stands beside, so that all have one unit. */
function seconds(value, among) {
  const [, size, unit] = UNITS.find(([from]) => (among === undefined ? value || 1 : among) >= from);
  return `${+(value / size).toPrecision(4)} ${unit}`;
}

/* Round times in the unit that they are written in. */
function timeTicks(from, until, about) {
  const [, size] = UNITS.find(([least]) => until >= least);
  return ticks(from / size, until / size, about).map((at) => at * size);
}

class Curves {
  constructor(runs) {
    this.runs = runs;
    this.hidden = new Set();
    this.box = document.getElementById("chart");
    this.legend = document.getElementById("legend");
    this.tip = element("div", {class: "tip", role: "status", hidden: ""});
    this.runs.forEach((run, at) => this.addToLegend(run, at));
    for (const name of ["value", "over"])
      for (const input of document.querySelectorAll(`input[name=${name}]`))
        input.addEventListener("change", () => this.draw());
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.draw(); }).observe(this.box);
    this.draw();
  }

  addToLegend(run, at) {
    const button = element("button", {type: "button", "aria-pressed": "true"});
    button.append(swatch(run), document.createTextNode(run.name));
    button.addEventListener("click", () => {
      const shown = this.hidden.delete(at) || !this.hidden.add(at);
      button.setAttribute("aria-pressed", String(shown));
      this.draw();
    });
    this.legend.append(button);
  }

  chosen(name) { return document.querySelector(`input[name=${name}]:checked`).value; }

  draw() {
    this.width = this.box.clientWidth;
    const width = Math.max(280, this.width - 14);
    const height = Math.round(Math.min(420, Math.max(230, width * 0.42)));
    const value = this.chosen("value"), over = this.chosen("over");
    const lines = this.runs.map((run, at) => ({run, at, x: run.curves[value][over], y: run.curves[value].y}))
      .filter((line) => line.y.length && !this.hidden.has(line.at));
    const svg = node("svg", {viewBox: `0 0 ${width} ${height}`, role: "img"});
    svg.setAttribute("aria-label", `test ${value} over ${over === "t" ? "time" : "samples"}: ` + lines
      .map((line) => `${line.run.name} ends at ${this.text(value, line.y.at(-1))}`).join("; "));
    this.box.replaceChildren(svg, this.tip);
    if (!lines.length) return;
    const frame = this.frame(lines, value, over, width, height);
    this.axes(svg, frame, value, over, width, height);
    for (const line of lines) {
      const path = node("path", {class: "curve", d: this.path(line, frame)}, svg);
      if (line.x.length === 1) {  // no line can be drawn of it
        const dot = node("circle", {class: "dot", r: 4.5, cx: frame.x(line.x[0]), cy: frame.y(line.y[0])}, svg);
        dot.style.setProperty("--c", line.run.colour);
      }
      path.style.setProperty("--c", line.run.colour);
      if (line.run.dash) path.setAttribute("stroke-dasharray", line.run.dash);
    }
    this.follow(svg, lines, frame, value, over, width, height);
  }

  frame(lines, value, over, width, height) {
    const right = Math.max(...lines.map((line) => line.x.at(-1))) || 1;
    const all = lines.flatMap((line) => line.y);
    const targets = new Set(lines.map((line) => line.run.targets[value]).filter((each) => each !== null));
    const target = targets.size === 1 ? [...targets][0] : null;
    let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
    if (target !== null) [low, high] = [Math.min(low, target), Math.max(high, target)];
    // Losses over decades: a logarithmic scale shows the end as well as the beginning.
    const log = value === "loss" && low > 0 && high / low > 30;
    const to = log ? Math.log10 : (y) => y;
    if (value === "accuracy") { low = Math.max(0, low - 0.02); high = Math.min(1, high + 0.02); }
    let [bottom, top] = [to(low), to(high)];
    if (!(top > bottom)) { bottom -= 0.5; top += 0.5; }
    const [left, below, above] = [52, 34, 14];
    return {
      left, below, above, right, low, high, log, target, bottom, top,
      x: (x) => left + (x / right) * (width - left - 14),
      y: (y) => above + (1 - (to(y) - bottom) / (top - bottom)) * (height - above - below),
    };
  }

  axes(svg, frame, value, over, width, height) {
    const rows = frame.log
      ? ticks(Math.ceil(frame.bottom), Math.floor(frame.top), 5).filter((p) => Number.isInteger(p)).map((p) => 10 ** p)
      : ticks(frame.bottom, frame.top, height / 50);
    for (const at of rows) {
      const y = frame.y(at);
      node("line", {class: "grid", x1: frame.left, x2: width - 14, y1: y, y2: y}, svg);
      node("text", {x: frame.left - 8, y: y + 4, "text-anchor": "end"}, svg).textContent = this.text(value, at, true);
    }
    for (const at of (over === "t" ? timeTicks : ticks)(0, frame.right, width / 100)) {
      const label = over === "t" ? seconds(at, frame.right) : shortNumber(at);
      node("text", {x: frame.x(at), y: height - 12, "text-anchor": "middle"}, svg).textContent = label;
    }
    if (frame.target !== null) {
      const y = frame.y(frame.target);
      node("line", {class: "target", x1: frame.left, x2: width - 14, y1: y, y2: y}, svg);
      // Where curves are far from it: an accuracy comes from below on the left, a loss ends below it on the right.
      const place = value === "accuracy" ? {x: frame.left + 6} : {x: width - 14, "text-anchor": "end"};
      node("text", {...place, y: y - 5}, svg).textContent = `target ${this.text(value, frame.target)}`;
    }
  }

  text(value, number, isTick) {
    if (value === "accuracy") return `${(100 * number).toFixed(isTick ? 0 : 1)} %`;
    return `${+number.toPrecision(4)}`;
  }

  path(line, frame) {
    return line.x.map((x, at) => `${at ? "L" : "M"}${frame.x(x).toFixed(1)} ${frame.y(line.y[at]).toFixed(1)}`).join("");
  }

  /* What every run had come to where the pointer is. */
  follow(svg, lines, frame, value, over, width, height) {
    const cross = node("line", {class: "cross", y1: frame.above, y2: height - frame.below, visibility: "hidden"}, svg);
    const dots = lines.map((line) => {
      const dot = node("circle", {class: "dot", r: 4.5, visibility: "hidden"}, svg);
      dot.style.setProperty("--c", line.run.colour);
      return dot;
    });
    const hide = () => { for (const each of [cross, ...dots]) each.setAttribute("visibility", "hidden"); this.tip.hidden = true; };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width * width - frame.left) / (width - frame.left - 14) * frame.right;
      if (at < 0 || at > frame.right) return hide();
      cross.setAttribute("visibility", "visible");
      cross.setAttribute("x1", frame.x(at)); cross.setAttribute("x2", frame.x(at));
      const rows = [element("b", {}, over === "t" ? seconds(at) : `${shortNumber(at)} samples`)];
      lines.forEach((line, number) => {
        const next = line.x.findIndex((x) => x > at);
        const index = next < 0 ? line.x.length - 1 : next - 1;
        dots[number].setAttribute("visibility", index < 0 ? "hidden" : "visible");
        if (index < 0) return;
        dots[number].setAttribute("cx", frame.x(line.x[index])); dots[number].setAttribute("cy", frame.y(line.y[index]));
        rows.push(element("div", {}, `${line.run.name}: ${this.text(value, line.y[index])}`));
      });
      this.tip.replaceChildren(...rows);
      this.tip.hidden = false;
      const x = event.clientX - this.box.getBoundingClientRect().left;
      const beside = x > this.box.clientWidth / 2 ? x - this.tip.offsetWidth - 14 : x + 14;
      this.tip.style.left = `${Math.max(4, Math.min(beside, this.box.clientWidth - this.tip.offsetWidth - 4))}px`;
      this.tip.style.top = `${frame.above + 8}px`;
    });
  }
}
