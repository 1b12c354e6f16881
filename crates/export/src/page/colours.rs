//! The colours of all pages and charts, by what they mean.

/// Each colour's name, which is also the style class of what has it; on a light page, and on a dark one.
const COLOURS: &[(&str, &str, &str)] = &[
    // The page.
    ("page", "#ffffff", "#16191d"),
    ("ink", "#1c2024", "#e6e9ec"),
    ("faint", "#59626b", "#9aa4ae"),
    ("line", "#d5dae0", "#363d45"),
    ("hover", "#e9eef5", "#28303a"),
    ("mark", "#b3261e", "#ff8a80"),
    ("match", "#d6006c", "#ff5fae"),
    ("on-dark", "#ffffff", "#ffffff"),
    ("on-light", "#16191c", "#16191c"),
    ("on-frame", "#16191c", "#ffffff"),
    // Frames and vCPUs: whose code runs.
    ("guest-user", "#8fd3a0", "#2f7a45"),
    ("guest-kernel", "#8db8ec", "#2f649f"),
    ("guest-unknown", "#7fcfcb", "#2b7d79"),
    ("host-user", "#f2d06b", "#87701a"),
    ("host-kernel", "#f0a26b", "#b0642f"),
    ("vm", "#cbb6ea", "#6d4fa0"),
    ("process", "#ddd3f0", "#50416f"),
    ("all", "#e9eef5", "#28303a"),
    ("idle", "#dde2e7", "#333b43"),
    // vCPUs.
    ("ran", "#2f8f89", "#3fa9a3"),
    ("vmm", "#f0a26b", "#b0642f"),
    ("vmm-waiting", "#b9692c", "#e08f4c"),
    ("preempted", "#d3404c", "#e0525e"),
    ("throttled", "#9a6fd0", "#8a5cc4"),
    ("not-sampled", "#e8dc8a", "#8a7f2b"),
    ("halt-polling", "#b3bcc6", "#56616c"),
    ("unknown", "#9d8fb5", "#7d6f96"),
    // Tasks, CPUs, disks.
    ("user", "#0072b2", "#2f8fd0"),
    ("kernel", "#56b4e9", "#7cc8f2"),
    ("interrupt", "#1f3a5f", "#b6cfe8"),
    ("cpu-wait", "#e69f00", "#e69f00"),
    ("disk-wait", "#d55e00", "#e06a1b"),
    ("lock-wait", "#cc79a7", "#d68fb5"),
    ("asleep", "#b4bdc7", "#56616c"),
    ("stopped", "#7d8790", "#78828c"),
    ("reads", "#009e73", "#1fb58a"),
    ("writes", "#a3a500", "#b9bb2a"),
    ("reads-writes", "#4f7d2a", "#86b35c"),
    ("queued", "#a8dcc8", "#2c5a4b"),
    // The nine states: first by CPU, then by disk.
    ("s00", "#08306b", "#9ecae1"),
    ("s01", "#2171b5", "#4292c6"),
    ("s02", "#6baed6", "#2171b5"),
    ("s10", "#8c2d04", "#fdae6b"),
    ("s11", "#d94801", "#f16913"),
    ("s12", "#fd8d3c", "#d94801"),
    ("s20", "#00591f", "#74c476"),
    ("s21", "#41ab5d", "#238b45"),
    ("s22", "#c9d1d8", "#3d464f"),
    // Things that are only to be told apart, as machines.
    ("c0", "#0072b2", "#2f8fd0"),
    ("c1", "#d55e00", "#e06a1b"),
    ("c2", "#009e73", "#1fb58a"),
    ("c3", "#7d5ba6", "#a88bd0"),
    ("c4", "#a38300", "#d6b23c"),
    ("c5", "#cc79a7", "#d68fb5"),
    ("c6", "#56b4e9", "#7cc8f2"),
    ("c7", "#7d8790", "#a5adb5"),
];

/// How many colours there are of the last kind, whose names are `c0` and so on.
pub(crate) const N_DISTINCT: usize = 8;

/// The style rules: each colour as a variable, and as the paint of its class.
pub(super) fn rules() -> String {
    let variables = |pick: fn(&(&str, &str, &str)) -> String| {
        COLOURS.iter().map(pick).collect::<Vec<_>>().join(" ")
    };
    let light = variables(|(name, light, _)| format!("--{name}: {light};"));
    let dark = variables(|(name, _, dark)| format!("--{name}: {dark};"));
    let paint =
        |(name, ..): &(&str, &str, &str)| format!(".{name} {{ --paint: var(--{name}); }}\n");
    format!(
        ":root {{ color-scheme: light dark; {light} }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{}",
        COLOURS.iter().map(paint).collect::<String>()
    )
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_different_and_colours_are_six_digits() {
        let names: BTreeSet<&str> = COLOURS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), COLOURS.len());
        for colour in COLOURS.iter().flat_map(|(_, light, dark)| [light, dark]) {
            let digits = colour.strip_prefix('#').unwrap();
            assert!(digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        }
        assert!((0..N_DISTINCT).all(|n| names.contains(format!("c{n}").as_str())));
    }
}
