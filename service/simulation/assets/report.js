// Charts by uPlot from the data in the page. The table below each chart has the same data.
const HEIGHT = 280;
const LAYERS = [0.25, 0.42, 0.6, 0.8, 1];
const plots = new Map();

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const checkbox = (policy) => document.querySelector(`[data-policy="${policy}"]`);

function number(value) {
  if (value === null || value === undefined) return "";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

// Colour and dashes of a line: by its policy, or those of a line for comparison.
function ink(policy) {
  if (policy === null) return { stroke: variable("faint"), dash: [2, 4] };
  return { stroke: variable(`c${policy % 12}`), dash: policy % 12 > 5 ? [7, 3] : [] };
}

function layer(number, count) {
  const color = `rgba(${variable("held")}, ${LAYERS[LAYERS.length - count + number]})`;
  return { stroke: color, fill: color };
}

// Each layer begins where the one below it ends.
function sums(lines) {
  let below = lines[0].y.map(() => 0);
  return lines.map(({ y }) => (below = y.map((value, at) => (value ?? 0) + below[at])));
}

function draw(box) {
  const { label, x, lines, log, shares, stacked } = JSON.parse(box.dataset.chart);
  const text = (value) => (shares && typeof value === "number" ? `${Math.round(100 * value)} %` : number(value));
  const axis = (more) => ({
    stroke: variable("faint"), font: "12px system-ui", labelFont: "13px system-ui",
    grid: { stroke: variable("rule"), width: 1 }, ticks: { show: false }, ...more,
  });
  const stepped = log ? {} : { paths: uPlot.paths.stepped({ align: 1 }) };
  const series = lines.map((line, at) => ({
    label: line.name, width: 2, points: { show: false }, show: checkbox(line.policy)?.checked ?? true,
    value: (_, __, ___, point) => text(line.y[point]),
    ...(stacked ? layer(at, lines.length) : ink(line.policy)), ...stepped,
  }));
  const options = {
    width: box.clientWidth,
    height: HEIGHT,
    scales: { x: { time: false, distr: log ? 3 : 1 }, y: { range: (_, __, most) => [0, shares ? 1 : (most || 1) * 1.05] } },
    axes: [
      axis({ label, labelSize: 22, size: 28, values: (_, values) => values.map(number) }),
      axis({ size: 56, values: (_, values) => values.map(text) }),
    ],
    series: [{ label, value: (_, value) => number(value) }, ...series],
    // Without a cursor the legend has names only.
    hooks: { setLegend: [({ legend }) => box.classList.toggle("pointed", typeof legend.idx === "number")] },
    bands: stacked ? lines.slice(1).map((_, at) => ({ series: [at + 2, at + 1] })) : [],
  };
  plots.set(box, { lines, plot: new uPlot(options, [x, ...(stacked ? sums(lines) : lines.map(({ y }) => y))], box) });
}

// A box has no width before its section is opened.
const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (!contentRect.width) continue;
    if (plots.has(target)) plots.get(target).plot.setSize({ width: contentRect.width, height: HEIGHT });
    else draw(target);
  }
});
for (const box of document.querySelectorAll("[data-chart]")) sizes.observe(box);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [box, { plot }] of plots) {
    plot.destroy();
    draw(box);
  }
});

// Each policy has a checkbox. Clearing it hides the lines, bars and rows of the policy.
for (const box of document.querySelectorAll("input[data-policy]")) {
  const policy = Number(box.dataset.policy);
  const apply = () => {
    for (const part of document.querySelectorAll(`main .p${policy}`)) part.style.display = box.checked ? "" : "none";
    for (const { lines, plot } of plots.values()) {
      lines.forEach((line, at) => line.policy === policy && plot.setSeries(at + 1, { show: box.checked }));
    }
  };
  box.addEventListener("change", apply);
  apply(); // browsers may restore cleared checkboxes after a reload
}
