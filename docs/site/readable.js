// Boxes that scroll sideways are reached by the keyboard, too, and the search has a name. The theme wraps tables late.
const reachable = () => document.querySelectorAll(".md-typeset pre, .md-typeset__scrollwrap").forEach(box => { box.tabIndex = 0; });
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
reachable();
document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
