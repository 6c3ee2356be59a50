//! `systole reference --man DIR`: a manual page for each command, from the very definition that parses it.

use crate::args::Cli;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::Path;

/// A page: the name of its file, and its text.
type Page = (String, Vec<u8>);

/// Writes all pages.
pub fn write(dir: &Path) -> io::Result<()> {
    pages()?
        .into_iter()
        .try_for_each(|(name, text)| std::fs::write(dir.join(name), text))
}

fn pages() -> io::Result<Vec<Page>> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut all = Vec::new();
    add(&root, &mut all)?;
    Ok(all)
}

fn add(command: &Command, all: &mut Vec<Page>) -> io::Result<()> {
    all.push(page(command)?);
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| add(command, all))
}

fn page(command: &Command) -> io::Result<Page> {
    let man = Man::new(command.clone())
        .source(format!("systole {}", env!("CARGO_PKG_VERSION")))
        // An empty one would be left out, and what follows take its place.
        .date(" ")
        .manual("systole");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    section(&mut text, "SYNOPSIS", &synopsis(command))?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        section(&mut text, "NOTES", &notes.to_string())?;
    }
    let more = "docs/ of the sources and /usr/share/doc/systole of the package have the guide, the fields of job files and the rest.";
    section(&mut text, "SEE ALSO", more)?;
    Ok((man.get_filename(), text))
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    // What follows the first line is indented to stand below it.
    usage.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// A section whose lines stay as they are: examples and tables of words lose their sense when they are filled.
fn section(to: &mut impl Write, heading: &str, text: &str) -> io::Result<()> {
    writeln!(to, ".SH \"{heading}\"\n.nf")?;
    for line in text.trim_matches('\n').lines() {
        writeln!(to, "{}", escaped(line.trim_end()))?;
    }
    writeln!(to, ".fi")
}

/// As roff takes it for text: a dash stays the dash that can be typed, and no line is an order.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('`', "\\(ga");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options_and_its_examples_line_by_line() {
        let pages = pages().expect("in memory");
        let text = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name);
            String::from_utf8(page.unwrap_or_else(|| panic!("no {name}")).1.clone()).expect("text")
        };
        let trigger = text("systole-job-trigger.1");
        assert!(trigger.contains("systole job trigger [OPTIONS]"), "{trigger}");
        let cancel = text("systole-cancel.1");
        for words in [
            "\\fB\\-\\-exact\\fR",
            "\n.nf\nCancels the live attempt of each task's chain, so that no retry follows; \\-\\-exact acts on the id alone.\n",
            "\n  systole cancel 17 18 \\-\\-reason \"wrong month\"\n",
        ] {
            assert!(cancel.contains(words), "{words:?}: {cancel}");
        }
        let root = text("systole.1");
        let mut own = Cli::command();
        own.build();
        for command in own.get_subcommands() {
            let name = format!("systole-{}.1", command.get_name());
            let page = pages.iter().any(|(file, _)| *file == name);
            assert_eq!(page, !command.is_hide_set() && command.get_name() != "help", "{name}");
            assert!(
                !page || root.contains(&command.get_name().replace('-', "\\-")),
                "{name}"
            );
        }
    }

    #[test]
    fn no_line_of_text_is_an_order() {
        assert_eq!(escaped(".br"), "\\&.br");
        assert_eq!(escaped("'x' \\n -o"), "\\&'x' \\en \\-o");
    }
}
