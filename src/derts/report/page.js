"use strict";
// Tables sort by a click on a heading: numbers by value, the rest by letters.
for (const cell of document.querySelectorAll("th")) {
  const button = document.createElement("button");
  button.append(...cell.childNodes);
  cell.append(button);
  button.addEventListener("click", () => {
    const body = cell.closest("table").tBodies[0];
    const down = cell.getAttribute("aria-sort") !== "descending";
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[cell.cellIndex].textContent.split(" ± ")[0].replace(/,|%$/g, "").trim();
    const rows = [...body.rows].sort((one, two) => {
      const a = value(one), b = value(two);
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    });
    body.append(...rows);
  });
}

const tip = document.getElementById("tip");

function show(content, x, y) {
  tip.replaceChildren(...content.cloneNode(true).childNodes);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18}px`;
}

for (const map of document.querySelectorAll(".map")) {
  const tips = map.querySelector(".tips").children;
  map.querySelectorAll("circle").forEach((circle, task) => {
    const shown = (event) => show(tips[task], event.clientX, event.clientY);
    circle.addEventListener("mousemove", shown);
    circle.addEventListener("mouseleave", () => { tip.hidden = true; });
    circle.addEventListener("click", (event) => { shown(event); event.stopPropagation(); });
  });
}
document.addEventListener("click", () => { tip.hidden = true; });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
