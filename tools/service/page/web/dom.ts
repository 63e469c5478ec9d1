// Elements of the document. Text of the daemon's is put into it as text, never as markup.

export function at<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element ${id}`);
  return found as T;
}

export type Child = Node | string;
export function make(tag: string, properties: Record<string, string> = {}, ...children: Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function button(text: string, press: () => void, kind = ""): HTMLButtonElement {
  const made = make("button", { type: "button", class: kind }, text) as HTMLButtonElement;
  made.addEventListener("click", press);
  return made;
}

export function put(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text; // a reader is not told twice
}

/** Make the children of `parent` those of `items`, in order; elements of known keys stay, with their focus. */
export function sync<T>(parent: Element, items: T[], key: (item: T) => string, create: (item: T) => Element, update: (element: Element, item: T) => void): void {
  const known = new Map<string, Element>();
  for (const child of [...parent.children]) known.set(child.getAttribute("data-key") ?? "", child);
  let before: Element | null = null;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (element === undefined) {
      element = create(item);
      element.setAttribute("data-key", name);
    }
    known.delete(name);
    update(element, item);
    const place: Element | null = before === null ? parent.firstElementChild : before.nextElementSibling;
    if (place !== element) parent.insertBefore(element, place);
    before = element;
  }
  for (const child of known.values()) child.remove();
}
