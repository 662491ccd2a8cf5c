// Charts by uPlot from the JSON in the page. The table below each chart has the same data.
import { zone } from "./times.js";

const HUES = [0, 1, 2, 3, 4, 6, 7, 8];
const charts = new Map();

export function draw(changed) {
  if (!window.uPlot) return;
  for (const box of document.querySelectorAll("[data-chart]")) {
    const source = document.getElementById(box.dataset.chart);
    if (!source) continue;
    const drawn = charts.get(box);
    const fragment = source.parentElement.closest("[id]")?.id;
    if (changed && drawn && !changed.has(source.id) && !changed.has(fragment)) continue;
    const data = JSON.parse(source.textContent);
    const made = KINDS[source.dataset.kind](data, ink());
    if (drawn && changed && drawn.shape === shape(made)) {
      drawn.plot.setData(made.data);
      continue;
    }
    drawn?.plot.destroy();
    charts.delete(box);
    box.classList.toggle("nothing", !made.data[0].length);
    if (!made.data[0].length) continue;
    const plot = new window.uPlot({ ...size(box), ...made.options }, made.data, box);
    charts.set(box, { plot, shape: shape(made) });
  }
}

// Properties that cannot be changed after a chart is drawn.
function shape(made) {
  return JSON.stringify([made.options.series, made.fixed ?? null]);
}

function size(box) {
  const style = getComputedStyle(box);
  const width = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return { width, height: parseFloat(style.getPropertyValue("--plot")) }; // The legend below it takes what it needs.
}

new ResizeObserver(() => {
  for (const [box, { plot }] of charts) plot.setSize(size(box));
}).observe(document.body);

function ink() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const hue = (number) => {
    probe.removeAttribute("style");
    probe.className = `job-${number}`;
    return getComputedStyle(probe).color;
  };
  const found = { soft: read("soft"), line: read("line"), accent: read("accent"), bad: read("lost"), good: read("useful"), idle: read("idle"), hues: HUES.map(hue) };
  probe.remove();
  return found;
}

const faint = (color, share) => color.replace(/^rgb\((.*)\)$/, `rgb($1 / ${share})`).replaceAll(",", "");
const UNITS = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];

// Format a number in short form, with this many significant digits.
function near(value, digits = 3) {
  if (value === null || value === undefined) return "";
  const [size, unit] = UNITS.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${Number((value / (unit === "k" ? 1000 : size)).toPrecision(digits))}${unit}`;
}

// Labels of an axis, with as many digits as neighbours need to differ.
function marked(values, step) {
  const most = Math.max(...values.map(Math.abs));
  const digits = step > 0 && most > 0 ? Math.floor(Math.log10(most)) - Math.floor(Math.log10(step)) + 1 : 3;
  return values.map((value) => near(value, Math.min(8, Math.max(3, digits))));
}

function axis(colors, more) {
  return { stroke: colors.soft, font: "11px system-ui", grid: { stroke: colors.line, width: 1 }, ticks: { show: false }, size: 46, ...more };
}

function options(colors, series, more = {}) {
  return {
    legend: { live: true },
    padding: [12, more.time ? 34 : 20, 0, 0], // Half of the last label stands right of the plot.
    cursor: { points: { size: 6 } },
    axes: [axis(colors, { size: 28, ...along(more) }), axis(colors, { values: (_, values, __, ___, step) => marked(values, step), size: wide })],
    series: [{ label: more.x ?? `time, ${zone()}`, value: legend(more.time ? (value) => moment(value, 1) : near) }, ...series],
    scales: { x: { time: Boolean(more.time) }, ...more.scales },
    ...more.top,
  };
}

// Width of the longest label.
function wide(_, values) {
  return Math.max(46, 14 + 6.5 * Math.max(0, ...(values ?? []).map((text) => text.length)));
}

function along(more) {
  if (more.time) return { values: (_, values, __, ___, step) => values.map((value) => moment(value, step)), space: 64 };
  return { values: (_, values, __, ___, step) => marked(values, step), ...(more.whole ? { incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] } : {}) };
}

// Format a time with the precision of a step in seconds.
function moment(at, step) {
  const date = new Date(1000 * at);
  const digits = (value) => String(value).padStart(2, "0");
  if (step >= 86_400) return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  const time = `${digits(date.getHours())}:${digits(date.getMinutes())}`;
  return step < 60 ? `${time}:${digits(date.getSeconds())}` : time;
}

// The legend shows the value under the cursor; without a cursor, the latest.
function legend(format) {
  return ({ data }, value, series, at) => format(typeof at === "number" ? value : data[series].findLast((one) => typeof one === "number"));
}

function line(label, stroke, more = {}) {
  return { label, stroke, width: 1.75, points: { show: false }, value: legend(near), ...more };
}

// Merge several series with their own x values into columns over all x values.
function joined(series) {
  const names = Object.keys(series);
  if (!names.length) return [[]];
  return window.uPlot.join(names.map((name) => [series[name].x, series[name].y]));
}

const KINDS = {
  metrics({ series }, colors) {
    const names = Object.keys(series);
    return {
      data: joined(series),
      options: options(
        colors,
        names.map((name, number) => line(name, colors.hues[number % colors.hues.length], { spanGaps: true, dash: number ? [6, 3] : [] })),
        { x: "samples" },
      ),
    };
  },

  sizes({ x, y, max, pauses }, colors) {
    const top = { hooks: { draw: [(plot) => marks(plot, pauses, colors.bad)] } };
    return {
      data: [x, y],
      fixed: [max, pauses],
      options: options(
        colors,
        [line("slots", colors.accent, { fill: faint(colors.accent, 0.14), paths: window.uPlot.paths.stepped({ align: 1 }) })],
        { time: true, scales: { y: { range: (_, __, most) => [0, Math.max(max, most ?? 1) * 1.05] } }, top },
      ),
    };
  },

  goodput({ kinds }, colors) {
    const series = [];
    const tables = [];
    const bands = [];
    const present = [];
    for (const [number, [kind, one]] of Object.entries(kinds).entries()) {
      const color = colors.hues[number % colors.hues.length];
      const at = 1 + series.length;
      tables.push([one.x, one.y, one.high, one.low]);
      series.push(
        line(kind, color, { points: { show: true, size: 6 } }),
        line(`${kind}, at most`, faint(color, 0.25), { width: 1, class: "unnamed" }),
        line(`${kind}, at least`, faint(color, 0.25), { width: 1, class: "unnamed" }),
      );
      bands.push({ series: [at + 1, at + 2], fill: faint(color, 0.12) });
      if (one.present !== null) present.push([one.present, at]);
    }
    const top = { bands, hooks: { draw: [(plot) => standing(plot, present, colors.accent)] } };
    return {
      data: tables.length ? window.uPlot.join(tables) : [[]],
      fixed: present,
      options: options(colors, series, {
        x: "slots",
        whole: true,
        scales: { x: { time: false, range: (_, low, high) => [Math.max(0, low - 0.5), high + 0.5] }, y: { range: (_, __, most) => [0, (most ?? 1) * 1.05] } },
        top,
      }),
    };
  },

  gap({ x, y, took }, colors) {
    return {
      data: [x, y, took],
      options: options(
        colors,
        [line("gap, %", colors.accent), line("took, ms", colors.hues[1], { scale: "ms" })],
        {
          time: true,
          scales: { y: { range: (_, __, most) => [0, Math.max(0.1, (most ?? 0) * 1.1)] }, ms: { range: (_, __, most) => [0, (most ?? 1) * 1.1] } },
          top: { axes: [axis(colors, { size: 28, ...along({ time: true }) }), axis(colors), axis(colors, { scale: "ms", side: 1, grid: { show: false } })] },
        },
      ),
    };
  },

  prices({ x, series }, colors) {
    const names = Object.keys(series);
    if (!names.length) return { data: [[]], options: {} };
    return {
      data: [x, ...names.map((name) => series[name])],
      options: options(
        colors,
        names.map((name, number) => line(name, colors.hues[number % colors.hues.length], { paths: window.uPlot.paths.stepped({ align: 1 }) })),
        { time: true },
      ),
    };
  },

  best({ x, value, best, metric, log }, colors) {
    return {
      data: x.length ? [x, value, best] : [[]],
      fixed: log,
      options: options(
        colors,
        [
          line(metric, colors.soft, { paths: () => null, points: { show: true, size: 5 } }),
          line(`best ${metric}`, colors.accent, { width: 2.25, paths: window.uPlot.paths.stepped({ align: 1 }) }),
        ],
        { x: "trials ended", whole: true, scales: { x: { time: false, range: (_, low, high) => [Math.max(0, low - 0.5), high + 0.5] }, y: log ? { distr: 3 } : {} } },
      ),
    };
  },

  burn({ x, y, from, to, usd, forecast }, colors) {
    const even = [[from, to], [usd, 0]];
    const tables = [[x, y], even];
    const series = [line("left, $", colors.accent, { fill: faint(colors.accent, 0.12), spanGaps: true }), line("even pace", colors.idle, { dash: [4, 4], spanGaps: true })];
    if (forecast !== null) {
      tables.push([[x.at(-1), to], [y.at(-1), forecast]]);
      series.push(line("at the present rate", colors.bad, { dash: [2, 3], spanGaps: true }));
    }
    return { data: window.uPlot.join(tables), options: options(colors, series, { time: true, scales: { y: { range: [0, usd * 1.05] } } }) };
  },
};

// Draw a line for each pause.
function marks(plot, pauses, color) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.lineWidth = devicePixelRatio;
  for (const [at] of pauses) {
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// Draw a ring at the job's present size.
function standing(plot, present, color) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.lineWidth = 2.5 * devicePixelRatio;
  for (const [slots, series] of present) {
    const value = plot.data[series][plot.data[0].indexOf(slots)];
    if (value === null || value === undefined) continue;
    ctx.beginPath();
    ctx.arc(plot.valToPos(slots, "x", true), plot.valToPos(value, "y", true), 6 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.restore();
}
