"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const chosen = { solver: data.blocks[0].solver, nfe: data.blocks[0].nfe };
  const blockOf = (solver, nfe) => data.blocks.find((b) => b.solver === solver && b.nfe === nfe);
  const now = () => blockOf(chosen.solver, chosen.nfe);

  // Text is only ever set as text.
  const make = (tag, attributes = {}, ...inside) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...inside);
    return node;
  };
  const draw = (parent, tag, attributes, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "color") { node.style.stroke = value; node.style.fill = value; }
      else if (name === "stroke" || name === "fill") node.style[name] = value;
      else node.setAttribute(name, value);
    }
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const digits = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    return size >= 1e-4 && size < 1e5 ? String(Number(v.toPrecision(3))) : v.toExponential(1);
  };
  const ratio = (v) => (v >= 0.1 ? v.toFixed(2) : digits(Number(v.toPrecision(2))));
  const brief = (v) => {
    const r = Number(v.toPrecision(2));
    return r >= 1e-4 && r < 1e4 ? r.toFixed(Math.max(0, 1 - Math.floor(Math.log10(r)))) : digits(r);
  };
  const colour = (i) => `var(--c${i % 6})`;

  // Scales and axes

  const scale = (low, high, from, to, log) => {
    const f = log ? Math.log : (v) => v;
    const span = f(high) - f(low) || 1;
    return (v) => from + ((f(v) - f(low)) / span) * (to - from);
  };
  const evenTicks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) ticks.push(Number(v.toPrecision(10)));
    return ticks;
  };
  const logTicks = (low, high) => {
    for (const parts of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
      const ticks = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
        for (const m of parts) {
          const v = m * 10 ** e;
          if (v >= low * 0.999 && v <= high * 1.001) ticks.push(v);
        }
      }
      if (ticks.length >= 3) return ticks;
    }
    return evenTicks(low, high, 4);
  };
  const frame = (box, height, label) => {
    const width = Math.max(260, box.clientWidth);
    box.replaceChildren();
    return {
      width, height,
      svg: draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }),
    };
  };
  const spread = (labels, gap, low, high) => {
    // Moves labels apart, as little as it can.
    labels.sort((a, b) => a.y - b.y);
    for (let round = 0; round < 60; round += 1) {
      let moved = false;
      for (let i = 1; i < labels.length; i += 1) {
        const lack = gap - (labels[i].y - labels[i - 1].y);
        if (lack > 0.01) { labels[i - 1].y -= lack / 2; labels[i].y += lack / 2; moved = true; }
      }
      for (const label of labels) label.y = Math.min(high, Math.max(low, label.y));
      if (!moved) break;
    }
    return labels;
  };

  // Pictures

  const png = (text) => `data:image/png;base64,${text}`;
  const sheetOf = () => data.pictures.sheets.find((s) => s.solver === chosen.solver && s.nfe === chosen.nfe);
  const distance = (method, number) => {
    const row = now().rows.find((r) => r.method === method);
    return row && number in row.distances ? row.distances[number] : null;
  };
  const small = () => (data.pictures.width <= 64 ? " small" : "");
  const image = (source, alt) => make("img", {
    src: png(source), alt, width: data.pictures.width, height: data.pictures.height,
  });
  const after = (sheet, n) => (sheet.after === "teacher" ? data.pictures.teacher[n] : sheet.after_png[n]);
  const change = (sheet, n) => {
    const [a, b] = [distance(sheet.before, n), distance(sheet.after, n)];
    return a === null ? "" : b === null ? brief(a) : `${brief(a)} → ${brief(b)}`;
  };
  const showPictures = () => {
    const sheet = sheetOf();
    const section = byId("pictures");
    section.hidden = !sheet;
    if (!sheet) return;
    byId("before-name").textContent = sheet.before;
    byId("after-name").textContent = sheet.after;
    const kind = (name) => (data.methods.find((m) => m.name === name) || {}).kind;
    byId("before-role").textContent = kind(sheet.before) === "learned" ? "learned" : "best baseline";
    byId("after-role").textContent = kind(sheet.after) === "learned" ? "learned" : "";
    byId("teacher").replaceChildren(...sheet.first.map((n) => make("div", { class: "tile" },
      make("span", { class: `view plain${small()}` }, image(data.pictures.teacher[n], `Seed ${n} by the teacher`)),
      make("small", {}, `seed ${n}`))));
    byId("both").replaceChildren(...sheet.first.map((n) => make("div", { class: "tile" },
      make("span", { class: `view${small()}` },
        image(sheet.before_png[n], `Noise ${n} by ${sheet.before}`), image(after(sheet, n), `Noise ${n} by ${sheet.after}`)),
      make("small", {}, change(sheet, n)))));
    const cases = [
      [`Where ${sheet.after} is farthest from the teacher`, sheet.worst_after],
      [`Where ${sheet.before} is farthest from the teacher`, sheet.worst_before],
      ["Where learning gains least, or loses", sheet.least_gain],
    ].filter(([, numbers]) => numbers.length);
    byId("worst").replaceChildren(...cases.flatMap(([title, numbers]) => [
      make("h4", {}, title), make("div", { class: "cases" }, ...numbers.map((n) => worstCase(sheet, n))),
    ]));
  };
  const worstCase = (sheet, n) => {
    const three = [["teacher", data.pictures.teacher[n]], [sheet.before, sheet.before_png[n]], [sheet.after, after(sheet, n)]]
      .slice(0, sheet.after === "teacher" ? 2 : 3);
    return make("div", { class: "case" },
      make("div", { class: `trio${small()}` }, ...three.map(([name, source]) => image(source, `Noise ${n} by ${name}`))),
      make("div", { class: "names" }, ...three.map(([name]) => {
        const value = distance(name, n);
        return make("small", {}, name, document.createElement("br"), value === null ? `seed ${n}` : brief(value));
      })));
  };
  const cut = (value) => {
    const slider = byId("slider");
    slider.value = value;
    byId("both").style.setProperty("--cut", `${slider.value}%`);
    const sheet = sheetOf();
    if (sheet) slider.setAttribute("aria-valuetext", `left ${slider.value} % ${sheet.before}, the rest ${sheet.after}`);
  };
  const listenToSlider = () => {
    byId("slider").addEventListener("input", (event) => cut(event.target.value));
    const drag = (event) => {
      const view = event.target.closest(".view");
      if (!view || !event.buttons) return;
      const box = view.getBoundingClientRect();
      cut(Math.round((100 * (event.clientX - box.left)) / box.width));
      event.preventDefault();
    };
    for (const kind of ["pointerdown", "pointermove"]) byId("both").addEventListener(kind, drag);
    byId("both").addEventListener("dragstart", (event) => event.preventDefault());
  };

  // Who gets a colour: the learned methods, then the best baselines of the solver.

  const solverBlocks = () => data.blocks.filter((b) => b.solver === chosen.solver).sort((a, b) => a.nfe - b.nfe);
  const named = () => {
    const blocks = solverBlocks();
    const rank = (name) => blocks.reduce((sum, b) => {
      const place = b.rows.findIndex((r) => r.method === name && !r.failed);
      return sum + (place < 0 ? b.rows.length : place);
    }, 0);
    const featured = blocks.map((b) => b.featured).find(Boolean);
    const learned = data.methods.filter((m) => m.kind === "learned").map((m) => m.name).sort((a, b) => rank(a) - rank(b));
    const known = data.methods.filter((m) => m.kind !== "learned").map((m) => m.name).sort((a, b) => rank(a) - rank(b));
    const order = [...(featured ? [featured] : []), ...known.slice(0, 1), ...learned.filter((n) => n !== featured).slice(0, 2), ...known.slice(1, 3)];
    return new Map(order.map((name, i) => [name, colour(featured ? i : i + 1)]));
  };

  const drawCurves = (box) => {
    const key = box.dataset.metric;
    const metric = data.metrics.find((m) => m.key === key);
    const colours = named();
    const blocks = solverBlocks();
    const lines = data.methods.map((method) => ({
      name: method.name,
      points: blocks.flatMap((b) => {
        const row = b.rows.find((r) => r.method === method.name);
        return row && row.scores[key] ? [{ x: b.nfe, ...row.scores[key] }] : [];
      }),
    })).filter((line) => line.points.length);
    if (!lines.length) { box.replaceChildren(make("p", { class: "muted" }, "Nothing was measured here.")); return; }
    const shown = lines.filter((l) => colours.has(l.name));
    const points = lines.flatMap((l) => l.points);
    const log = metric.better === "lower" && points.every((p) => p.value > 0);
    // The scale follows the named methods; what is far beyond it is drawn at its edge.
    const values = points.map((p) => p.value);
    const main = shown.flatMap((l) => l.points);
    const [least, most] = [Math.min(...values), Math.max(...main.map((p) => p.value))];
    const reach = log ? 0 : 0.5 * Math.max(most - least, 1e-9);
    const under = Math.max(Math.min(...main.map((p) => p.low)), log ? least / 2 : least - reach);
    const over = Math.max(...main.map((p) => p.high), ...values);
    const above = Math.min(over, log ? 3 * most : most + reach);
    const [low, high] = log ? [under / 1.1, above * 1.1] : [under - 0.05 * (above - under), above + 0.05 * (above - under)];
    const counts = blocks.map((b) => b.nfe);
    const said = shown.map((l) => `${l.name}: ${l.points.map((p) => `${p.x} evaluations ${digits(p.value)}`).join(", ")}`).join("; ");
    const { svg, width, height } = frame(box, 300, `${metric.label} against evaluations. ${said}`);
    const area = { left: 52, right: width - 112, top: 10, bottom: height - 36 };
    const gap = counts.length > 1 ? 0 : 1;
    const x = scale(counts[0] - gap, counts[counts.length - 1] + gap, area.left + 26, area.right - 26, false);
    const y = scale(low, high, area.bottom, area.top, log);
    for (const tick of log ? logTicks(low, high) : evenTicks(low, high, 5)) {
      draw(svg, "line", { class: "rule", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) });
      draw(svg, "text", { class: "tick", x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, digits(tick));
    }
    for (const count of counts) draw(svg, "text", { class: "tick", x: x(count), y: area.bottom + 18, "text-anchor": "middle" }, count);
    draw(svg, "text", { class: "tick", x: (area.left + area.right) / 2, y: height - 2, "text-anchor": "middle" }, "evaluations");
    const labels = [];
    const inside = (v) => Math.min(area.bottom, Math.max(area.top, y(Math.max(v, log ? low : v))));
    const order = [...colours.keys()].filter((name) => shown.some((l) => l.name === name));
    const ordered = [...lines.filter((l) => !colours.has(l.name)), ...shown.reverse()];
    for (const line of ordered) {
      const own = colours.get(line.name);
      const beside = own ? 7 * (order.indexOf(line.name) - (order.length - 1) / 2) : 0; // so that bars do not hide each other
      const group = draw(svg, "g", {});
      draw(group, "title", {}, `${line.name}: ${line.points.map((p) => `${p.x}: ${digits(p.value)} (${digits(p.low)} to ${digits(p.high)})`).join(", ")}`);
      const ink = own || "var(--other)";
      const path = line.points.map((p, i) => `${i ? "L" : "M"}${x(p.x) + beside} ${inside(p.value)}`).join("");
      draw(group, "path", { d: path, stroke: ink, fill: "none", "stroke-width": own ? 2.25 : 1.25, "stroke-linejoin": "round" });
      for (const p of line.points) {
        if (own) draw(group, "line", { x1: x(p.x) + beside, x2: x(p.x) + beside, y1: inside(p.low), y2: inside(p.high), stroke: ink, "stroke-width": 5, opacity: 0.3, "stroke-linecap": "round" });
        draw(group, "circle", { cx: x(p.x) + beside, cy: inside(p.value), r: own ? 3.5 : 2, fill: ink });
      }
      const last = line.points[line.points.length - 1];
      if (own) labels.push({ text: line.name, y: inside(last.value), at: inside(last.value), x: x(last.x) + beside, ink });
    }
    for (const label of spread(labels, 16, area.top, area.bottom)) {
      draw(svg, "line", { x1: label.x + 6, x2: area.right + 4, y1: label.at, y2: label.y, stroke: label.ink, opacity: 0.5 });
      draw(svg, "text", { class: "halo", x: area.right + 8, y: label.y + 4, fill: label.ink }, label.text);
    }
  };

  const drawGrids = () => {
    const rows = now().rows.filter((r) => r.lam.length);
    const colours = named();
    const box = byId("grids");
    const narrow = box.clientWidth < 560;
    const step = narrow ? 36 : 26;
    const left = narrow ? 8 : Math.min(190, 24 + 8 * Math.max(...rows.map((r) => r.method.length)));
    const all = rows.flatMap((r) => [...r.lam, ...r.net_lam]);
    const said = rows.map((r) => `${r.method}: ${r.lam.map(digits).join(" ")}`).join("; ");
    const { svg, width } = frame(box, rows.length * step + 62, `Time grids on the axis of log alpha over sigma. ${said}`);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const x = scale(low, high, left + 10, width - 12, false);
    const bottom = rows.length * step + 10;
    for (const tick of evenTicks(low, high, narrow ? 4 : 9)) {
      draw(svg, "line", { class: "rule", x1: x(tick), x2: x(tick), y1: 4, y2: bottom });
      draw(svg, "text", { class: "tick", x: x(tick), y: bottom + 18, "text-anchor": "middle" }, digits(tick));
    }
    draw(svg, "text", { class: "tick", x: left + 10, y: bottom + 42 }, "← noise");
    draw(svg, "text", { class: "tick", x: (left + width) / 2, y: bottom + 42, "text-anchor": "middle" }, narrow ? "log(α/σ)" : "log(α/σ), half the logSNR");
    draw(svg, "text", { class: "tick", x: width - 12, y: bottom + 42, "text-anchor": "end" }, "data →");
    rows.forEach((row, i) => {
      const y = i * step + (narrow ? 25 : 16);
      const ink = colours.get(row.method) || "var(--muted)";
      const group = draw(svg, "g", {});
      draw(group, "title", {}, `${row.method}: ${row.lam.map(digits).join(", ")}`);
      draw(group, "line", { x1: x(row.lam[0]), x2: x(row.lam[row.lam.length - 1]), y1: y, y2: y, stroke: ink, opacity: 0.35 });
      for (const lam of row.lam) draw(group, "circle", { cx: x(lam), cy: y, r: 4, fill: ink });
      row.net_lam.forEach((lam, j) => {
        if (Math.abs(lam - row.lam[j]) > 1e-6 * (high - low) && j + 1 < row.lam.length) {
          draw(group, "circle", { cx: x(lam), cy: y + 8, r: 3.2, fill: "none", stroke: ink, "stroke-width": 1.3 });
        }
      });
      const label = { class: "halo", y: narrow ? y - 9 : y + 4, fill: colours.has(row.method) ? ink : "var(--text)" };
      draw(group, "text", narrow ? { ...label, x: 8 } : { ...label, x: left, "text-anchor": "end" }, row.method);
    });
  };

  const drawCost = () => {
    const box = byId("cost");
    const colours = named();
    const rows = now().rows.filter((r) => r.ratio);
    if (!rows.length) { box.replaceChildren(make("p", { class: "muted" }, "There is no baseline to compare with.")); return; }
    const points = rows.map((r) => ({ ...r, cost: r.evaluations + r.teacher_evaluations }));
    const said = points.map((p) => `${p.method}: ${p.cost} evaluations, ratio ${ratio(p.ratio.value)}`).join("; ");
    const { svg, width, height } = frame(box, Math.max(340, 60 + 17 * rows.length), `Cost against gain. ${said}`);
    const paid = points.map((p) => p.cost).filter((c) => c > 0);
    const narrow = width < 560;
    const area = { left: 48, right: width - (narrow ? 84 : 130), top: 12, bottom: height - 40 };
    const free = area.left + (narrow ? 10 : 24);
    const begin = free + (narrow ? 92 : 150);
    const [least, most] = paid.length ? [Math.min(...paid) / 1.6, Math.max(...paid) * 1.4] : [1, 10];
    const along = scale(least, most, begin, area.right - 8, true);
    const x = (cost) => (cost > 0 ? along(cost) : free);
    const values = points.map((p) => p.ratio.value).filter((v) => v > 0);
    const best = Math.min(...values);
    const low = Math.min(best, ...points.map((p) => p.ratio.low).filter((v) => v > best / 2)) / 1.08;
    const high = Math.max(1.1, Math.min(Math.max(...points.map((p) => p.ratio.high)), 30 * best)) * 1.08;
    const y = scale(low, high, area.bottom, area.top, true);
    const inside = (v) => Math.min(area.bottom, Math.max(area.top, y(Math.max(v, low))));
    for (const tick of logTicks(low, high)) {
      draw(svg, "line", { class: "rule", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) });
      draw(svg, "text", { class: "tick", x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, digits(tick));
    }
    draw(svg, "line", { class: "one", x1: area.left, x2: area.right, y1: y(1), y2: y(1) });
    draw(svg, "text", { class: "tick", x: free, y: area.bottom + 18, "text-anchor": "middle" }, "0");
    if (paid.length) for (const tick of logTicks(least, most)) {
      draw(svg, "text", { class: "tick", x: x(tick), y: area.bottom + 18, "text-anchor": "middle" }, tick >= 1000 ? `${digits(tick / 1000)}k` : digits(tick));
    }
    draw(svg, "text", { class: "tick", x: (area.left + area.right) / 2, y: height - 4, "text-anchor": "middle" }, "evaluations to find it");
    const labels = [];
    for (const p of [...points].reverse()) {
      const ink = colours.get(p.method) || "var(--muted)";
      const group = draw(svg, "g", {});
      draw(group, "title", {}, `${p.method}: ${p.cost} evaluations, ${p.seconds.toFixed(1)} s, ratio ${ratio(p.ratio.value)} (${ratio(p.ratio.low)} to ${ratio(p.ratio.high)})`);
      draw(group, "line", { x1: x(p.cost), x2: x(p.cost), y1: inside(p.ratio.low), y2: inside(p.ratio.high), stroke: ink, "stroke-width": 4, opacity: 0.3, "stroke-linecap": "round" });
      draw(group, "circle", { cx: x(p.cost), cy: inside(p.ratio.value), r: 4.5, fill: ink });
      labels.push({ text: p.method, x: x(p.cost), y: inside(p.ratio.value), at: inside(p.ratio.value), ink: colours.get(p.method), free: !p.cost });
    }
    for (const part of [labels.filter((l) => l.free), labels.filter((l) => !l.free)]) {
      for (const label of spread(part, 15, area.top, area.bottom)) {
        draw(svg, "line", { x1: label.x + 5, x2: label.x + 12, y1: label.at, y2: label.y, stroke: label.ink || "var(--other)" });
        draw(svg, "text", { class: "halo", x: label.x + 14, y: label.y + 4, fill: label.ink || "var(--muted)" }, label.text);
      }
    }
  };

  const NOISY = 24; // values: longer curves are of batches, so that their mean over a tenth is drawn
  const drawLearning = () => {
    const place = byId("learning");
    const rows = now().rows.filter((r) => r.curve.length > 1);
    const colours = named();
    place.replaceChildren();
    if (!rows.length) place.append(make("p", { class: "muted" }, "No method searched here."));
    const boxes = rows.map(() => make("div", { class: "chart" })); // all, before any is measured
    rows.forEach((row, i) => place.append(make("figure", {}, make("figcaption", {}, make("b", {}, row.method)), boxes[i])));
    rows.forEach((row, number) => {
      const box = boxes[number];
      const values = row.curve;
      const log = values.every((v) => v > 0);
      const [least, most] = [Math.min(...values), Math.max(...values)];
      const [low, high] = log ? [least / 1.05, most * 1.05] : [least, most];
      const { svg, width, height } = frame(box, 200, `${row.method} while searching: from ${digits(values[0])} to ${digits(values[values.length - 1])}`);
      const area = { left: 56, right: width - 12, top: 8, bottom: height - 34 };
      const x = scale(0, values.length - 1, area.left, area.right, false);
      const y = scale(low, high, area.bottom, area.top, log);
      for (const tick of log ? logTicks(low, high) : evenTicks(low, high, 4)) {
        draw(svg, "line", { class: "rule", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) });
        draw(svg, "text", { class: "tick", x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, digits(tick));
      }
      const line = (points, look) => draw(svg, "path", {
        d: points.map((v, i) => `${i ? "L" : "M"}${x(i)} ${y(v)}`).join(""),
        stroke: colours.get(row.method) || "var(--muted)", fill: "none", "stroke-linejoin": "round", ...look,
      });
      const reach = values.length < NOISY ? 0 : Math.round(values.length / 20);
      if (reach) line(values, { "stroke-width": 1, opacity: 0.35 });
      line(values.map((_, i) => {
        const near = values.slice(Math.max(0, i - reach), i + reach + 1);
        return near.reduce((sum, v) => sum + v, 0) / near.length;
      }), { "stroke-width": 2 });
      draw(svg, "text", { class: "tick", x: (area.left + area.right) / 2, y: height - 8, "text-anchor": "middle" }, "begin to end of the search");
    });
  };

  // The table

  const filter = () => {
    const only = byId("only").checked;
    byId("all").classList.toggle("one", only);
    for (const row of byId("all").tBodies[0].rows) {
      row.hidden = only && !(row.dataset.solver === chosen.solver && Number(row.dataset.nfe) === chosen.nfe);
    }
  };
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return null;
    if (cell.dataset.v !== undefined) return cell.tagName === "TH" ? cell.dataset.v : Number(cell.dataset.v);
    return cell.colSpan > 1 ? null : cell.textContent || null;
  };
  const sortBy = (column) => {
    const table = byId("all");
    const heads = [...table.tHead.rows[0].cells];
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    for (const head of heads) head.setAttribute("aria-sort", "none");
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
    rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : up ? compare(a, b) : compare(b, a)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    byId("sorted").textContent = `Sorted by ${heads[column].textContent}, ${up ? "ascending" : "descending"}`;
  };

  // Together

  const charts = () => {
    for (const box of document.querySelectorAll("[data-metric]")) drawCurves(box);
    drawGrids();
    drawCost();
    if (byId("learning")) drawLearning();
  };
  const update = () => {
    if (data.pictures) { showPictures(); cut(byId("slider").value); }
    charts();
    filter();
  };
  document.querySelector(".choices").addEventListener("change", (event) => {
    const { name, value } = event.target;
    chosen[name] = name === "nfe" ? Number(value) : value;
    update();
  });
  document.querySelector(".choices").addEventListener("submit", (event) => event.preventDefault());
  if (data.pictures) listenToSlider();
  byId("only").addEventListener("change", filter);
  [...byId("all").tHead.rows[0].cells].forEach((head, i) => head.firstElementChild.addEventListener("click", () => sortBy(i)));
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; charts(); }
  });
  update();
})();
