// Everything here makes pages live and saves steps; without it they are read and used as they are.
import { follow } from "./live.js";
import { draw } from "./charts.js";
import { followLog } from "./logs.js";
import { listCheckpoints } from "./checkpoints.js";
import { confirmForms, openFile, tips, themeSwitch, whatIf } from "./controls.js";
import { relative } from "./times.js";

themeSwitch(draw);
confirmForms();
openFile();
whatIf();
tips();
relative(document);
setInterval(() => relative(document), 10_000);
draw();
addEventListener("load", () => draw());
followLog();
listCheckpoints(relative);
follow((changed) => {
  relative(document);
  draw(changed);
});
const plan = document.getElementById("plan");
if (plan) {
  plan.focus({ preventScroll: true });
  plan.scrollIntoView({ block: "nearest" });
}
