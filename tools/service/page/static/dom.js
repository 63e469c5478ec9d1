// Made from dom.ts by make page; sha256 ca6d429e71baf04d1d6cd39998b0f21982a3ab9e1bab752151c1abfa3b1174a3
export function at(id) {
    const found = document.getElementById(id);
    if (found === null)
        throw new Error(`no element ${id}`);
    return found;
}
export function make(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties))
        made.setAttribute(name, value);
    made.append(...children);
    return made;
}
export function button(text, press, kind = "") {
    const made = make("button", { type: "button", class: kind }, text);
    made.addEventListener("click", press);
    return made;
}
export function put(element, text) {
    if (element.textContent !== text)
        element.textContent = text;
}
export function sync(parent, items, key, create, update) {
    const known = new Map();
    for (const child of [...parent.children])
        known.set(child.getAttribute("data-key") ?? "", child);
    let before = null;
    for (const item of items) {
        const name = key(item);
        let element = known.get(name);
        if (element === undefined) {
            element = create(item);
            element.setAttribute("data-key", name);
        }
        known.delete(name);
        update(element, item);
        const place = before === null ? parent.firstElementChild : before.nextElementSibling;
        if (place !== element)
            parent.insertBefore(element, place);
        before = element;
    }
    for (const child of known.values())
        child.remove();
}
