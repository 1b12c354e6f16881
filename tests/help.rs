//! docs/help.txt has the help of every command. Each program tests its own part of the file; UPDATE=1 rewrites it.

use std::fs;
use std::path::Path;

use clap::Command;

const MAX_COLUMNS: usize = 100;

/// Compares the help of a program's commands with its part of docs/help.txt.
pub(crate) fn check(program: &str, mut command: Command) {
    command = command.term_width(MAX_COLUMNS);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages);
    let actual = format!("# {program}\n\n{}", pages.concat());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/help.txt");
    let file = fs::read_to_string(&path).unwrap_or_default();
    let (before, rest) = file.split_at(find_part(&file, program));
    // A new part goes to the end.
    let length = rest.find("\n# ").map_or(rest.len(), |end| end + 1);
    let (part, after) = rest.split_at(length);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, [before, &actual, after].concat()).unwrap();
    } else {
        assert!(part == actual, "docs/help.txt is out of date: run this test with UPDATE=1");
    }
    for line in actual.lines() {
        assert!(line.chars().count() <= MAX_COLUMNS, "help is too wide: {line}");
    }
}

fn find_part(file: &str, program: &str) -> usize {
    let heading = format!("# {program}\n");
    let mut offset = 0;
    for line in file.split_inclusive('\n') {
        if line == heading {
            return offset;
        }
        offset += line.len();
    }
    file.len()
}

/// The help of a command and of all below it that are listed. One that runs, and does not only list others, has an
/// example.
fn add_pages(command: &Command, pages: &mut Vec<String>) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let help = command.clone().render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    assert!(
        command.has_subcommands() || help.contains("\nExample"),
        "the help of {name} has no example"
    );
    pages.push(format!("$ {name} --help\n{}\n\n\n", lines.join("\n").trim_end()));
    for subcommand in command.get_subcommands() {
        if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
            add_pages(subcommand, pages);
        }
    }
}
