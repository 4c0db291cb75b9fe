// Sorts, filters and unfolds the terminations, copies remedies, enlarges pictures, and shows their values. Without the
// script, everything is visible.
(() => {
  "use strict";
  const all = (selector) => [...document.querySelectorAll(selector)];
  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
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

  // Shows the values of a picture: under the pointer or finger, or one by one with the arrow keys.
  const NEAR = 14;
  const tells = (picture) => {
    const image = picture.querySelector("img");
    const plot = add(picture, "div", { className: "plot" });
    plot.append(image);
    const spot = add(plot, "div", { className: "spot", hidden: true });
    const tip = add(plot, "div", { className: "tip", hidden: true });
    tip.setAttribute("role", "status");
    const readings = picture.dataset.readings.split("\n").filter(Boolean).map((line) => {
      const [left, top, width, height, ...words] = line.split(" ");
      return { left: +left, top: +top, width: +width, height: +height, text: words.join(" ") };
    });
    let current = -1;
    const scale = () => image.clientWidth / image.naturalWidth;
    const show = (index, x) => {
      current = index;
      spot.hidden = tip.hidden = index < 0;
      if (index < 0) return;
      const { left, top, width, height, text } = readings[index];
      const by = scale();
      const middle = x === undefined ? (left + width / 2) * by : x - image.getBoundingClientRect().left;
      tip.textContent = text;
      Object.assign(spot.style, {
        left: `${left * by - 2}px`, top: `${top * by - 2}px`, width: `${width * by + 4}px`, height: `${height * by + 4}px`,
      });
      const [from, to] = [picture.scrollLeft, picture.scrollLeft + picture.clientWidth];
      tip.style.left = "0px";
      const begin = Math.max(from, Math.min(middle - tip.offsetWidth / 2, to - tip.offsetWidth));
      const above = top * by - tip.offsetHeight - 6;
      const y = above >= picture.scrollTop ? above : Math.min((top + height) * by + 6, image.clientHeight - tip.offsetHeight);
      Object.assign(tip.style, { left: `${begin}px`, top: `${y}px` });
    };
    const at = (event) => {
      const box = image.getBoundingClientRect();
      const by = scale();
      const [x, y] = [(event.clientX - box.left) / by, (event.clientY - box.top) / by];
      let best = -1;
      let least = Infinity;
      readings.forEach(({ left, top, width, height }, index) => {
        const far = Math.hypot(Math.max(left - x, 0, x - left - width), Math.max(top - y, 0, y - top - height));
        // If several areas are under the pointer, the smallest wins.
        const cost = far * 1e6 + width * height;
        if (far * by <= NEAR && cost < least) [best, least] = [index, cost];
      });
      return best;
    };
    const centre = ({ left, top, width, height }) => [left + width / 2, top + height / 2];
    // Returns the nearest value above or below.
    const beside = (way) => {
      const [x, y] = centre(readings[current]);
      let best = current;
      let least = Infinity;
      readings.forEach((reading, index) => {
        const [right, down] = centre(reading).map((v, i) => v - [x, y][i]);
        const cost = Math.abs(down) + 4 * Math.abs(right);
        if (down * way > 1 && cost < least) [best, least] = [index, cost];
      });
      return best;
    };
    const last = readings.length - 1;
    const steps = {
      ArrowRight: () => Math.min(current + 1, last),
      ArrowLeft: () => Math.max(current - 1, 0),
      ArrowDown: () => (current < 0 ? 0 : beside(1)),
      ArrowUp: () => (current < 0 ? 0 : beside(-1)),
      Home: () => 0,
      End: () => last,
    };
    for (const kind of ["pointermove", "pointerdown"]) {
      picture.addEventListener(kind, (event) => show(at(event), event.clientX));
    }
    picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(-1); });
    picture.addEventListener("blur", () => show(-1));
    picture.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        show(-1);
      } else if (steps[event.key] && readings.length && !event.ctrlKey && !event.altKey && !event.metaKey) {
        event.preventDefault();
        show(steps[event.key]());
        spot.scrollIntoView({ block: "nearest", inline: "nearest" });
        show(current);
      }
    });
    return () => show(current);
  };

  // One dialog enlarges all pictures; a picture moves into it and back.
  const dialog = add(document.body, "dialog", { id: "zoom" });
  const bar = add(dialog, "form", { method: "dialog" });
  const buttons = ["Smaller", "Larger"].map((textContent) => add(bar, "button", { type: "button", textContent }));
  add(bar, "button", { textContent: "Close" });
  const STEP = 1.4;
  let shown = null;
  const resize = (by) => {
    const { picture, image, place } = shown;
    const centre = [picture.scrollLeft + picture.clientWidth / 2, picture.scrollTop + picture.clientHeight / 2];
    const before = image.clientWidth;
    const width = Math.max(picture.clientWidth, Math.min(before * by, 4 * image.naturalWidth));
    image.style.width = `${width}px`;
    picture.scrollLeft = centre[0] * width / before - picture.clientWidth / 2;
    picture.scrollTop = centre[1] * width / before - picture.clientHeight / 2;
    place();
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => resize(i ? STEP : 1 / STEP)));
  dialog.addEventListener("keydown", ({ key }) => {
    if (key === "+" || key === "=") resize(STEP);
    if (key === "-") resize(1 / STEP);
  });
  dialog.addEventListener("close", () => {
    const { figure, picture, image, place } = shown;
    image.style.width = "";
    figure.prepend(picture);
    figure.style.minHeight = "";
    figure.querySelector("button.zoom").focus();
    place();
    shown = null;
  });

  for (const figure of all("figure")) {
    const picture = figure.querySelector(".picture");
    const image = picture.querySelector("img");
    const place = tells(picture);
    const zoom = () => {
      if (shown) return;
      shown = { figure, picture, image, place };
      figure.style.minHeight = `${figure.offsetHeight}px`;
      dialog.setAttribute("aria-label", picture.getAttribute("aria-label"));
      dialog.append(picture);
      dialog.showModal();
      image.style.width = `${Math.max(picture.clientWidth, image.naturalWidth)}px`;
      picture.focus();
      place();
    };
    figure.querySelector("button.zoom").addEventListener("click", zoom);
    // A tap asks for a value.
    image.addEventListener("click", (event) => { if (event.pointerType === "mouse") zoom(); });
    // In the dialog, the mouse drags a picture that is larger than the dialog.
    image.addEventListener("pointermove", (event) => {
      if (shown && event.pointerType === "mouse" && event.buttons === 1) picture.scrollBy(-event.movementX, -event.movementY);
    });
    image.addEventListener("dragstart", (event) => event.preventDefault());
  }

  for (const table of all("table.rows")) {
    const bodies = [...table.tBodies];
    const heads = [...table.tHead.rows[0].cells];
    // The cells are laid out as blocks (style.css), so some browsers no longer expose the table as one.
    const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
    for (const part of [table, ...table.querySelectorAll("thead, tbody, tr, td, th")]) {
      part.setAttribute("role", roles[part.tagName] || (part.scope === "row" ? "rowheader" : "columnheader"));
    }
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
