const runs = JSON.parse(document.getElementById("data").textContent);
if (document.getElementById("chart")) new Curves(runs);
const together = () => document.querySelector("input[name=together][value=same]")?.checked;
const timelines = [...document.querySelectorAll(".timeline")].map((box) =>
  new Timeline(box, runs[+box.dataset.run], (moved) => {
    if (together()) for (const other of timelines) if (other !== moved) other.show(moved.from, moved.until);
  }));
for (const input of document.querySelectorAll("input[name=together]"))
  input.addEventListener("change", () => {
    const longest = Math.max(...timelines.map((each) => each.end));
    const widest = Math.max(...timelines.map((each) => each.firstView()));
    for (const each of timelines) {
      each.limit = together() ? longest : each.end;
      each.show(0, together() ? widest : each.firstView());
    }
  });
for (const each of timelines) each.draw();
// Paper is light, and a canvas keeps the colours that it was drawn with.
for (const [when, dark] of [["beforeprint", false], ["afterprint", true]])
  addEventListener(when, () => {
    document.documentElement.classList.toggle("printing", !dark);
    for (const each of timelines) each.draw();
  });
