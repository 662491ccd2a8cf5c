// Move the chart of slots over time with the service's clock. Its contents change only with the stream.
import { place, tipElement } from "./controls.js";
import { serviceTime } from "./live.js";
import { zone } from "./times.js";

const NEAR_PX = 4; // Distance from which a bar counts as under the pointer.
let tip = null;
let pointer = null; // Latest movement of the pointer over the chart.

export function moveHistory() {
  const axis = document.getElementById("history-axis");
  if (!axis) return;
  const { begins, window, height } = axis.dataset;
  document.getElementById("history").setAttribute("height", height);
  for (const mark of axis.querySelectorAll("text[data-at]")) {
    const text = clock(new Date(mark.dataset.at));
    if (mark.textContent !== text) mark.textContent = text;
  }
  document.getElementById("history-zone").textContent = zone();
  if (document.querySelector("#live.away")) return; // The chart stops while the stream is interrupted.
  const now = serviceTime() / 1000;
  const left = (100 * (Number(begins) - (now - Number(window)))) / Number(window);
  document.getElementById("history-strip").setAttribute("x", `${Math.min(0, left).toFixed(3)}%`);
  hideCutLabels(axis);
  describe();
}

// A label that the edge of the chart would cut is left out; its line remains.
function hideCutLabels(axis) {
  const picture = document.getElementById("history").getBoundingClientRect();
  for (const label of axis.querySelectorAll("text")) {
    const box = label.getBoundingClientRect();
    label.classList.toggle("cut", box.left < picture.left || box.right > picture.right);
  }
}

function clock(date, seconds = false) {
  const parts = [date.getHours(), date.getMinutes(), ...(seconds ? [date.getSeconds()] : [])];
  return parts.map((value) => String(value).padStart(2, "0")).join(":");
}

// Show the text of a bar beside the pointer, in local time. Without scripts the browser shows its title.
export function historyTips() {
  const picture = document.getElementById("history");
  if (!picture) return;
  tip = tipElement();
  tip.classList.add("long");
  picture.addEventListener("pointermove", (event) => {
    pointer = event;
    describe();
  });
  picture.addEventListener("pointerleave", () => {
    pointer = null;
    describe();
  });
}

// The chart moves and changes under a resting pointer, which the browser does not report.
function describe() {
  if (!tip) return;
  const bar = pointer && barNear(pointer);
  tip.hidden = !bar;
  if (!bar) return;
  const title = bar.querySelector("title");
  if (title) {
    bar.dataset.said = title.textContent;
    title.remove();
  }
  tip.textContent = local(bar.dataset.said);
  place(tip, pointer);
}

// The bar under the pointer, or one beside it: a bar that has just begun is narrower than a pointer is exact.
function barNear({ clientX, clientY }) {
  for (const aside of [0, -NEAR_PX, NEAR_PX]) {
    const bar = document.elementFromPoint(clientX + aside, clientY)?.closest("#history svg.held");
    if (bar) return bar;
  }
  return null;
}

// Convert UTC times to local ones. They are at most a day old, the longest range of the chart.
function local(text) {
  return text.replace(/(\d\d):(\d\d):(\d\d)(?: UTC)/g, (_, hours, minutes, seconds) => {
    const date = new Date(serviceTime());
    date.setUTCHours(Number(hours), Number(minutes), Number(seconds));
    return `${clock(date, true)} ${zone()}`;
  });
}
