// Sorts, filters and unfolds the terminations, copies remedies and enlarges pictures. Without it all is shown.
(() => {
  "use strict";
  const all = (selector) => [...document.querySelectorAll(selector)];
  document.documentElement.classList.add("js");

  for (const button of all("button.copy")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.of);
      let copied = true;
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  for (const figure of all("figure")) {
    const button = figure.querySelector("button.zoom");
    const zoom = () => {
      const large = figure.classList.toggle("large");
      button.setAttribute("aria-pressed", String(large));
    };
    button.addEventListener("click", zoom);
    figure.querySelector("img").addEventListener("click", zoom);
  }

  for (const table of all("table.rows")) {
    const bodies = [...table.tBodies];
    const heads = [...table.tHead.rows[0].cells];
    const unfold = (body, open) => {
      body.querySelector("tr.detail").hidden = !open;
      body.querySelector("button.unfold").setAttribute("aria-expanded", String(open));
    };
    for (const body of bodies) {
      unfold(body, false);
      const button = body.querySelector("button.unfold");
      button.addEventListener("click", () => unfold(body, button.getAttribute("aria-expanded") !== "true"));
    }

    const value = (body, column) => {
      const cell = body.rows[0].cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = bodies.map((body) => [value(body, column), body]);
        keyed.sort(([a], [b]) => {
          const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
          return down ? -order : order;
        });
        table.append(...keyed.map(([, body]) => body));
      });
    });

    const filter = document.getElementById(table.dataset.filter);
    const count = document.getElementById(table.dataset.count);
    const texts = bodies.map((body) => body.rows[0].textContent.toLowerCase());
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      bodies.forEach((body, i) => {
        body.hidden = !words.every((word) => texts[i].includes(word));
        shown += body.hidden ? 0 : 1;
      });
      count.textContent = `${shown} of ${bodies.length}`;
    });
  }
})();
