// What people drop, paste and choose: files, and folders with the images inside them.
import { byId } from "/assets/dom.js";

const MOST_SEEN = 20000; // files and folders that are looked at for images
const IMAGE = /\.(bmp|jpe?g|png|tiff?|webp)$/i;

const chosenFiles = (files) => ({ given: Array.from(files, (file) => ({ file, name: file.name })) });

// What a drop brings, folders opened: at most so many images of folders; what cannot be opened is counted.
async function dropped(transfer, most) {
  // All at once: the browser forgets what was dropped as soon as anything is waited for.
  const brought = Array.from(transfer.items).filter((one) => one.kind === "file")
    .map((one) => ({ entry: one.webkitGetAsEntry(), file: one.getAsFile() }));
  const folders = brought.filter(({ entry }) => entry && entry.isDirectory).map(({ entry }) => entry);
  const { given } = chosenFiles(brought.filter(({ entry }) => !entry || !entry.isDirectory).map(({ file }) => file));
  const found = { given, folders: folders.length, unread: 0, more: false };
  await walk(folders, found, most);
  return found;
}

async function walk(folders, found, most) {
  const waiting = [...folders].reverse();
  for (let seen = 0; waiting.length; seen += 1) {
    const entry = waiting.pop();
    const wanted = entry.isDirectory || IMAGE.test(entry.name);
    if (seen >= MOST_SEEN || (wanted && found.given.length >= most)) {
      found.more = true;
      return;
    }
    try {
      if (entry.isDirectory) waiting.push(...(await inside(entry)).reverse());
      else if (wanted) found.given.push({ file: await opened(entry), name: entry.fullPath.slice(1) });
    } catch {
      found.unread += 1;
    }
  }
}

// Hidden files are notes of the system about the others.
async function inside(folder) {
  const reader = folder.createReader();
  const some = () => new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
  const all = [];
  for (let next = await some(); next.length; next = await some()) all.push(...next);
  const shown = all.filter((entry) => !entry.name.startsWith("."));
  return shown.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
}

const opened = (entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); });

// The bytes, or null where there are none any more. A form would only say that sending has failed, of all its files.
export const read = (file) => file.arrayBuffer().then((bytes) => new Blob([bytes]), () => null);

// `room()`: how many images more the page takes, null where it takes none now.
export function listen(room, add) {
  const drop = byId("drop");
  const brings = (event) => event.dataTransfer.types.includes("Files"); // and no marked text, on its way to a field
  byId("choose").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", (event) => { add(chosenFiles(event.target.files)); event.target.value = ""; });
  document.addEventListener("dragover", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    drop.classList.toggle("over", room() !== null);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  document.addEventListener("drop", async (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    drop.classList.remove("over");
    if (room() === null) return;
    byId("looking").textContent = "Looking for images …";
    const found = await dropped(event.dataTransfer, room());
    byId("looking").textContent = "";
    add(found);
  });
  document.addEventListener("paste", (event) => { if (room() !== null) add(chosenFiles(event.clipboardData.files)); });
}
