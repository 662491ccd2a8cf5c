// The scripts make pages live and save steps. All pages work without them.
import { follow } from "./live.js";
import { draw } from "./charts.js";
import { followLog } from "./logs.js";
import { moveHistory, historyTips } from "./history.js";
import { listCheckpoints } from "./checkpoints.js";
import { confirmForms, openFile, tips, themeSwitch, whatIf } from "./controls.js";
import { relative } from "./times.js";

themeSwitch(draw);
confirmForms();
openFile();
whatIf();
tips();
historyTips();
moveHistory();
setInterval(moveHistory, 1000);
relative(document);
setInterval(() => relative(document), 10_000);
draw();
addEventListener("load", () => draw());
followLog();
listCheckpoints(relative);
follow((changed) => {
  relative(document);
  moveHistory();
  draw(changed);
});
const plan = document.getElementById("plan");
if (plan) {
  plan.focus({ preventScroll: true });
  plan.scrollIntoView({ block: "nearest" });
}
