//! Checks that everyone can read the page: contrast, accessible names, heading order, and keyboard focus.

use super::*;

/// Script that returns the faults of the open page, one per line.
const FAULTS: &str = r#"(() => {
  const faults = [];
  const shown = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility({ visibilityProperty: true }));
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const mixed = new Map();
  // Returns the luminance of layered colours.
  const luminance = (colors) => {
    const key = colors.join();
    if (!mixed.has(key)) {
      for (const color of colors) {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
      }
      const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
        .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
      mixed.set(key, 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]);
    }
    return mixed.get(key);
  };
  for (const element of shown) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!hasText) continue;
    const style = getComputedStyle(element);
    const under = [];
    for (let e = element; e; e = e.parentElement) under.unshift(getComputedStyle(e).backgroundColor);
    const [a, b] = [luminance(under), luminance([...under, style.color])].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < least) faults.push(`contrast ${contrast.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
  }
  const name = (e) => e.getAttribute("aria-label") || e.alt || e.labels?.[0]?.textContent || e.textContent;
  for (const element of document.querySelectorAll("button, a, input, img, th, [role=region], dialog[open]")) {
    if (!name(element)?.trim()) faults.push(`no name: ${element.outerHTML.slice(0, 120)}`);
  }
  for (const what of ["id", "aria-label"]) {
    const all = [...document.querySelectorAll(`[${what}]:not(dialog)`)].map((e) => e.getAttribute(what));
    all.filter((one, i) => all.indexOf(one) < i).forEach((one) => faults.push(`${what} twice: ${one}`));
  }
  for (const element of document.querySelectorAll("[aria-controls], label[for], [data-of]")) {
    const of = element.getAttribute("aria-controls") || element.htmlFor || element.dataset.of;
    if (!document.getElementById(of)) faults.push(`nothing has the id ${of}`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((e) => Number(e.tagName[1]));
  if (levels[0] !== 1 || levels.some((level, i) => i && (level === 1 || level > levels[i - 1] + 1))) {
    faults.push(`headings: ${levels}`);
  }
  if (!document.documentElement.lang) faults.push("no language");
  return faults;
})()"#;

#[test]
fn page_elements_have_contrast_and_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    for theme in ["light", "dark"] {
        for size in [(1280, 800), (390, 844)] {
            browser.open(&page, size, theme);
            assert_eq!(browser.value(FAULTS), json!([]), "{theme} {size:?}");
            browser.value("document.querySelectorAll('.unfold').forEach(button => button.click())");
            browser
                .value("document.querySelectorAll('details').forEach(details => { details.open = true; })");
            assert_eq!(browser.value(FAULTS), json!([]), "unfolded: {theme} {size:?}");
            browser.value("document.querySelector('button.zoom').click()");
            browser.press("ArrowRight", 39);
            assert_eq!(browser.value("document.querySelector('dialog .tip').hidden"), false);
            assert_eq!(browser.value(FAULTS), json!([]), "a picture enlarged: {theme} {size:?}");
        }
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
fn keyboard_reaches_every_control() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = report(&dir);
    let mut browser = Browser::start();
    browser.open(&page, (1280, 800), "light");
    browser.value(
        "window.controls = [...document.querySelectorAll('a, button, input, summary, [tabindex]')]\
         .filter(control => control.checkVisibility() && !control.closest('dialog'))",
    );
    let all = browser.value("controls.length").as_u64().expect("a number");
    assert!(all > 40, "{all}");
    for number in 0..all {
        browser.press("Tab", 9);
        let seen = browser.value(
            "[controls.indexOf(document.activeElement), getComputedStyle(document.activeElement).outlineStyle]",
        );
        assert_eq!(seen, json!([number, "solid"]));
    }
}
