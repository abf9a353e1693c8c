// Appended to a report by report_browser_test.sh: lists labels of pictures that overlap, and text that is hard to read
// on what is behind it (WCAG 2.1, AA: 4.5 times the luminance), in an element with the id "checks".
(() => {
  const found = [];
  const name = (text) => JSON.stringify(text.textContent.trim().slice(0, 40));
  const shown = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility === "visible";
  for (const details of document.querySelectorAll("details")) details.open = true;

  for (const picture of document.querySelectorAll("svg")) {
    const labels = [...picture.querySelectorAll("text")].filter((text) => shown(text) && text.textContent.trim() !== "");
    const boxes = labels.map((text) => text.getBoundingClientRect());
    for (let i = 0; i < labels.length; ++i) {
      for (let j = i + 1; j < labels.length; ++j) {
        const [a, b] = [boxes[i], boxes[j]];
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // A line's box is higher than its letters.
        if (width > 1 && height > 0.35 * Math.min(a.height, b.height))
          found.push(`overlap: ${name(labels[i])} and ${name(labels[j])}`);
      }
    }
  }

  const color = (value) => {
    const numbers = (value.match(/[\d.]+/g) ?? []).map(Number);
    return value.startsWith("rgb") ? { rgb: numbers.slice(0, 3), alpha: numbers[3] ?? 1 } : { rgb: [0, 0, 0], alpha: 0 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const fill = (element) => {
    const style = getComputedStyle(element);
    if (["line", "polyline"].includes(element.tagName)) return { rgb: [0, 0, 0], alpha: 0 };
    const pattern = element instanceof SVGElement && style.fill.match(/url\("?#([^")]+)/);
    if (pattern) return fill(document.getElementById(pattern[1]).querySelector("rect"));
    const own = color(element instanceof SVGElement && !(element instanceof SVGSVGElement) ? style.fill : style.backgroundColor);
    const opacity = element instanceof SVGElement ? Number(style.fillOpacity) * Number(style.opacity) : 1;
    return { rgb: own.rgb, alpha: own.alpha * opacity };
  };
  const behind = (x, y, text) => {
    let rgb = [255, 255, 255];
    for (const element of document.elementsFromPoint(x, y).reverse()) {
      if (element === text || text.contains(element) || element.tagName === "text" || element.tagName === "tspan") continue;
      const over = fill(element);
      rgb = rgb.map((part, i) => part * (1 - over.alpha) + over.rgb[i] * over.alpha);
    }
    return rgb;
  };
  const texts = [...document.querySelectorAll("svg text, h1, h2, h3, p, td, th, li, summary, button, a, figcaption")];
  for (const text of texts) {
    if (!shown(text) || text.textContent.trim() === "") continue;
    const box = text.getBoundingClientRect();
    const style = getComputedStyle(text);
    const own = color(text instanceof SVGElement ? style.fill : style.color);
    const ground = behind(box.left + box.width / 2, box.top + box.height / 2, text);
    const [high, low] = [luminance(own.rgb), luminance(ground)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(1)}: ${name(text)}, ${style.fill} on ${ground.map(Math.round)}`);
  }
  const out = document.createElement("pre");
  out.id = "checks";
  out.textContent = `checked ${texts.length} texts\n` + [...new Set(found)].join("\n");
  document.body.append(out);
})();
