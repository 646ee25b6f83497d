/* What workers did when, on a canvas that can be zoomed: single spans where they are known and wide enough to be seen,
   shares of time elsewhere. */
const ROW = 24, AXIS = 24, TOP = 12;
const KINDS = ["compute", "wait", "load", "transfer"];

function decoded(timeline) {
  const shares = {};
  for (const [key, text] of Object.entries(timeline.overview.shares))
    shares[key] = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const stretches = timeline.stretches.map((stretch) => {
    const spans = {};
    for (const [key, steps] of Object.entries(stretch.spans)) {
      const found = new Float64Array(steps.length);
      let at = 0;
      for (let i = 0; i < steps.length; i += 2) {
        found[i] = stretch.start + (at += steps[i]) * stretch.step;
        found[i + 1] = stretch.start + (at += steps[i + 1]) * stretch.step;
      }
      spans[key] = found;
    }
    let at = 0;
    const updates = stretch.updates.map((step) => stretch.start + (at += step) * stretch.step);
    return {...stretch, spans, updates};
  });
  return {...timeline, shares, stretches};
}

class Timeline {
  constructor(box, run, onMove) {
    this.box = box;
    this.name = run.name;
    this.data = decoded(run.timeline);
    this.onMove = onMove;
    this.canvas = element("canvas", {tabindex: "0", role: "img"});
    this.status = element("p", {class: "status", "aria-live": "polite"});
    box.append(this.canvas, this.status);
    this.end = this.limit = this.data.end || 1;
    this.from = 0;
    this.until = this.firstView();
    this.listen();
    new ResizeObserver(() => { if (box.clientWidth !== this.width) this.draw(); }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /* A dozen updates: whoever opens the page sees a pattern, not a grey band. */
  firstView() {
    const updates = this.data.stretches[0].updates;
    return updates.length > 12 ? Math.min(this.end, updates[11]) : this.end;
  }

  show(from, until) {
    // Beside a longer run, there is empty time after the end of this one.
    const span = Math.min(Math.max(until - from, this.limit * 1e-9), this.limit);
    this.from = Math.min(Math.max(0, from), this.limit - span);
    this.until = this.from + span;
    this.draw();
  }

  zoom(factor, at) {
    const centre = at === undefined ? (this.from + this.until) / 2 : at;
    this.move(centre - (centre - this.from) * factor, centre + (this.until - centre) * factor);
  }

  move(from, until) { this.show(from, until); this.onMove(this); }

  listen() {
    const canvas = this.canvas, pointers = new Map();
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const span = this.until - this.from;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = span * Math.sign(event.deltaX || event.deltaY) * 0.08;
        return this.move(this.from + by, this.until + by);
      }
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.clientX));
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event.clientX);
    });
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.say());
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (before === undefined) return this.say(event);
      pointers.set(event.pointerId, event.clientX);
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        return this.zoom(Math.max(4, Math.abs(before - other)) / Math.max(4, Math.abs(event.clientX - other)));
      }
      const by = (before - event.clientX) / this.plot() * (this.until - this.from);
      this.move(this.from + by, this.until + by);
    });
    canvas.addEventListener("dblclick", () => this.move(0, this.limit));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const step = (this.until - this.from) * 0.15;
    const acts = {
      ArrowLeft: () => this.move(this.from - step, this.until - step),
      ArrowRight: () => this.move(this.from + step, this.until + step),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      "0": () => this.move(0, this.limit),
      Home: () => this.move(0, this.until - this.from),
      End: () => this.move(this.limit - (this.until - this.from), this.limit),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  }

  plot() { return Math.max(60, this.width - this.left); }
  x(t) { return this.left + (t - this.from) / (this.until - this.from) * this.plot(); }
  time(clientX) {
    return this.from + (clientX - this.canvas.getBoundingClientRect().left - this.left) / this.plot() * (this.until - this.from);
  }

  draw() {
    const rows = this.data.rows, ratio = window.devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.left = Math.min(110, this.width * 0.24);
    const height = TOP + rows.length * ROW + AXIS;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries([...KINDS, "ink", "soft", "line", "card"].map((each) => [each, style.getPropertyValue(`--${each}`).trim()]));
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    pen.font = "12px system-ui, sans-serif";
    this.grid(pen, height);
    pen.save();
    pen.beginPath(); pen.rect(this.left, 0, this.plot(), height - AXIS); pen.clip();
    rows.forEach((row, at) => this.row(pen, at, TOP + at * ROW));
    this.blanks(pen, height);
    this.updates(pen);
    this.marks(pen, height);
    pen.restore();
    this.names(pen);
    this.say();
  }

  grid(pen, height) {
    pen.textAlign = "center"; pen.textBaseline = "alphabetic";
    for (const at of timeTicks(this.from, this.until, this.plot() / 110)) {
      const x = this.x(at);
      pen.fillStyle = this.colours.line;
      pen.fillRect(x, TOP, 1, height - AXIS - TOP + 4);
      pen.fillStyle = this.colours.soft;
      const label = seconds(at, this.until), half = pen.measureText(label).width / 2;
      pen.fillText(label, Math.min(Math.max(x, this.left + half), this.width - half), height - 6);
    }
  }

  names(pen) {
    pen.textAlign = "left"; pen.textBaseline = "middle"; pen.fillStyle = this.colours.ink;
    this.data.rows.forEach((row, at) => {
      let name = row.name;
      while (name.length > 3 && pen.measureText(name).width > this.left - 8) name = `${name.slice(0, -2)}…`;
      pen.fillText(name, 0, TOP + at * ROW + ROW / 2);
    });
  }

  /* The stretch of which everything is known that a time lies in. */
  known(t) { return this.data.stretches.find((each) => t >= each.start && t <= each.end); }

  row(pen, row, top) {
    for (const stretch of this.data.stretches) {
      const from = Math.max(this.from, stretch.start), until = Math.min(this.until, stretch.end);
      if (until > from && this.fits(stretch, from, until)) this.spans(pen, stretch, row, top);
      else if (until > from) this.shares(pen, row, top, from, until);
    }
    const [first, last] = [this.data.stretches[0].end, this.data.stretches.at(-1).start];
    if (last > first) this.shares(pen, row, top, Math.max(first, this.from), Math.min(last, this.until));
  }

  /* Whether single spans can be seen: of more than one per pixel, shares of time say more. */
  fits(stretch, from, until) {
    const all = Object.values(stretch.spans).reduce((sum, each) => sum + each.length / 2, 0);
    const shown = all / Math.max(1, this.data.rows.length) * (until - from) / ((stretch.end - stretch.start) || 1);
    return shown < this.plot() * (until - from) / (this.until - this.from) * 0.7;
  }

  spans(pen, stretch, row, top) {
    for (const kind of KINDS) {
      const spans = stretch.spans[`${row} ${kind}`];
      if (!spans) continue;
      const thin = kind === "transfer" || kind === "load";
      const [y, height] = thin ? [top + ROW - (kind === "load" ? 9 : 6), 3] : [top + 3, ROW - 6];
      pen.fillStyle = this.colours[kind];
      for (let i = 0; i < spans.length; i += 2) {
        if (spans[i + 1] < this.from || spans[i] > this.until) continue;
        const x = this.x(spans[i]), wide = this.x(spans[i + 1]) - x;
        // A gap between one computation and the next, where there is room for it.
        pen.fillRect(x, y, Math.max(0.6, kind === "compute" && wide > 4 ? wide - 1 : wide), height);
      }
    }
  }

  shares(pen, row, top, from, until) {
    if (!(until > from)) return;
    const width = this.data.overview.width;
    const inner = ROW - 6;
    for (let at = Math.floor(from / width); at * width < until; at++) {
      const x = this.x(Math.max(from, at * width)), wide = this.x(Math.min(until, (at + 1) * width)) - x + 0.4;
      const share = (kind) => ((this.data.shares[`${row} ${kind}`] || [])[at] || 0) / 255;
      const compute = inner * share("compute"), wait = Math.min(inner - compute, inner * share("wait"));
      pen.fillStyle = this.colours.wait; pen.fillRect(x, top + 3 + (inner - compute - wait), wide, wait);
      pen.fillStyle = this.colours.compute; pen.fillRect(x, top + 3 + (inner - compute), wide, compute);
      for (const kind of ["load", "transfer"]) {
        if (!share(kind)) continue;
        pen.globalAlpha = Math.min(1, 0.2 + share(kind));
        pen.fillStyle = this.colours[kind];
        pen.fillRect(x, top + ROW - (kind === "load" ? 9 : 6), wide, 3);
        pen.globalAlpha = 1;
      }
    }
  }

  /* Where nothing was recorded, hatched: it must not pass for idleness. */
  blanks(pen, height) {
    for (const [from, until] of this.data.omitted) {
      const left = Math.max(this.left, this.x(from)), right = Math.min(this.width, this.x(until));
      if (!(right > left)) continue;
      pen.fillStyle = this.colours.card;
      pen.fillRect(left, TOP, right - left, height - AXIS - TOP);
      pen.save();
      pen.beginPath(); pen.rect(left, TOP, right - left, height - AXIS - TOP); pen.clip();
      pen.strokeStyle = this.colours.line; pen.lineWidth = 1.5;
      pen.beginPath();
      for (let x = left - height - left % 9; x < right; x += 9) { pen.moveTo(x, height); pen.lineTo(x + height, 0); }
      pen.stroke();
      pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillStyle = this.colours.soft;
      if (right - left > 90) pen.fillText("not recorded", (left + right) / 2, TOP + this.data.rows.length * ROW / 2);
      pen.restore();
    }
  }

  updates(pen) {
    pen.fillStyle = this.colours.ink;
    for (const stretch of this.data.stretches) {
      const shown = stretch.updates.filter((t) => t >= this.from && t <= this.until);
      if (shown.length > this.plot() / 3) continue;
      for (const t of shown) pen.fillRect(this.x(t) - 0.5, 2, 1.2, TOP - 3);
    }
  }

  marks(pen, height) {
    pen.fillStyle = this.colours.transfer;
    for (const mark of this.data.marks) {
      pen.fillRect(this.x(mark.t), 0, 1.5, height - AXIS);
      pen.beginPath(); pen.arc(this.x(mark.t), 5, 4, 0, 7); pen.fill();
    }
  }

  /* One line below: what is where the pointer is, or what is to be seen. */
  say(event) {
    const view = `${seconds(this.from, this.until)} to ${seconds(this.until)} of ${seconds(this.end)}`;
    const partial = this.data.stretches.length > 1 && !(this.known(this.from) && this.known(this.from) === this.known(this.until));
    const coarse = partial ? "; where single steps are not kept, the shares of time" : "";
    this.canvas.setAttribute("aria-label", `timeline of ${this.name}: ${this.data.rows.length} workers, ${view}`);
    this.status.textContent = event === undefined ? view + coarse + this.missing() : this.at(event) || view + coarse;
  }

  missing() {
    return this.data.omitted.length ? `; of ${this.data.omitted.length} stretch${this.data.omitted.length > 1 ? "es" : ""} no detail was recorded` : "";
  }

  at(event) {
    const t = this.time(event.clientX);
    const row = Math.floor((event.clientY - this.canvas.getBoundingClientRect().top - TOP) / ROW);
    if (t < this.from || t > this.until || row < 0 || row >= this.data.rows.length) return "";
    if (this.data.omitted.some(([from, until]) => from <= t && t <= until)) return `${seconds(t)}: not recorded`;
    const {name, class: kind} = this.data.rows[row];
    const near = (this.until - this.from) / this.plot() * 5;
    const mark = this.data.marks.find((each) => Math.abs(each.t - t) < near);
    const stretch = this.known(t);
    let doing = "";
    if (stretch) {
      const found = KINDS.filter((each) => {
        const spans = stretch.spans[`${row} ${each}`] || [];
        for (let i = 0; i < spans.length; i += 2) if (spans[i] <= t && t <= spans[i + 1]) return true;
        return false;
      });
      doing = found.join(" and ") || "nothing recorded";
    } else {
      const at = Math.floor(t / this.data.overview.width);
      doing = KINDS.map((each) => [each, (this.data.shares[`${row} ${each}`] || [])[at] || 0])
        .filter(([, share]) => share).map(([each, share]) => `${each} ${Math.round(share / 2.55)} %`).join(", ");
    }
    return `${seconds(t)}  ${name}${kind && !name.startsWith(kind) ? ` (${kind})` : ""}: ${doing}${mark ? `; ${mark.text}` : ""}`;
  }
}
