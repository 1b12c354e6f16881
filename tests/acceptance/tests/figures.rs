//! docs/figures.md is made of the files in docs/figures. `UPDATE=1` renews the page.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use acceptance::figures::{Figures, Index, checked_in, page};
use acceptance::root;

fn index() -> Index {
    toml::from_str(&fs::read_to_string(checked_in("index")).unwrap()).unwrap()
}

fn read(name: &str) -> anyhow::Result<Figures> {
    Figures::parse(&fs::read_to_string(checked_in(name))?)
}

#[test]
fn the_page_is_made_of_the_files() {
    let path = root().join("docs/figures.md");
    let expected = page(&index(), read).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let advice = "docs/figures.md is out of date: UPDATE=1 cargo test -p acceptance --test figures";
    assert!(known == expected, "{advice}");
}

#[test]
fn the_index_names_each_file_once() {
    let index = index();
    let named: Vec<&str> =
        index.sections.iter().flat_map(|section| &section.files).map(String::as_str).collect();
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(root().join("docs/figures")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        files.insert(name.strip_suffix(".toml").unwrap().to_owned());
    }
    files.remove("index");
    let once: BTreeSet<String> = named.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!((named.len(), &once), (files.len(), &files));
}

/// A file names its command, or has a command in each row.
#[test]
fn every_figure_has_a_command() {
    for name in index().sections.iter().flat_map(|section| &section.files) {
        let figures = read(name).unwrap();
        let column = figures.columns.iter().position(|title| title.contains("command"));
        let in_rows =
            column.is_some_and(|column| figures.rows.iter().all(|row| !row[column].is_empty()));
        assert!(in_rows || !figures.command.is_empty(), "docs/figures/{name}.toml");
    }
}

/// Links from other pages lead to a heading.
#[test]
fn linked_headings_exist() {
    let text = page(&index(), read).unwrap();
    let headings: BTreeSet<String> =
        text.lines().filter(|line| line.starts_with("##")).map(anchor).collect();
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|found| found == "md"));
    for path in pages.chain([root().join("README.md")]) {
        check_links(&path, &headings);
    }
}

fn check_links(path: &Path, headings: &BTreeSet<String>) {
    let text = fs::read_to_string(path).unwrap();
    for rest in text.split("figures.md#").skip(1) {
        let link = rest.split(')').next().unwrap_or_default();
        assert!(headings.contains(link), "{}: figures.md#{link}", path.display());
    }
}

/// As GitHub makes it: small letters and digits stay, spaces become hyphens, other characters go.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}
