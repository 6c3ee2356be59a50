//! `systole reference`: every command and option, from the very definition that parses them. `docs/commands.md` is its output,
//! and a test compares them.

use crate::args::{Cli, ReferenceArgs};
use crate::failure::{Failure, io_cause};
use crate::{exit_code, output};
use clap::{Arg, Command, CommandFactory as _};

const HEAD: &str = "\
# Commands

Every command and every option, printed by `systole reference`; a test compares this page with the program.
Durations need a unit (`90s`, `1h30m`), as do sizes (`64MiB`).

";

pub fn run(args: &ReferenceArgs) -> Result<u8, Failure> {
    match &args.man {
        None => output::data(markdown().as_bytes()),
        Some(dir) => super::man::write(dir).map_err(|error| {
            Failure::unexpected(format!(
                "--man: {} cannot be written: {}",
                dir.display(),
                io_cause(&error)
            ))
        })?,
    }
    Ok(exit_code::OK)
}

/// The page.
pub fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = HEAD.to_owned();
    if let Some(examples) = root.get_after_help() {
        page.push_str(&format!("```text\n{}\n```\n\n", trimmed(&examples.to_string())));
    }
    page.push_str("## Global options\n\nBefore or after each command.\n\n");
    for arg in shown(&root, true) {
        page.push_str(&item(arg));
    }
    for command in commands(&root) {
        section(command, "systole", 2, &mut page);
    }
    page
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn shown(command: &Command, global: bool) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(move |arg| {
        !arg.is_hide_set() && arg.is_global_set() == global && !matches!(arg.get_id().as_str(), "help" | "version")
    })
}

fn section(command: &Command, parent: &str, level: usize, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    page.push_str(&format!("\n{} {name}\n\n", "#".repeat(level)));
    if let Some(about) = command.get_about() {
        page.push_str(&format!("{about}.\n\n"));
    }
    let mut own = command.clone();
    let usage = own.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace("[OPTIONS] ", "");
    page.push_str(&format!("    {}\n\n", usage.trim().replace("\n       ", "\n    ")));
    let (options, places): (Vec<&Arg>, Vec<&Arg>) =
        shown(command, false).partition(|arg| arg.get_long().is_some() || arg.get_short().is_some());
    let mut heading = None;
    for arg in places.into_iter().chain(options) {
        // Options that belong together have a heading in the help; here a line.
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            if let Some(heading) = heading {
                page.push_str(&format!("\n{heading}:\n\n"));
            }
        }
        page.push_str(&item(arg));
    }
    if let Some(examples) = command.get_after_help() {
        page.push_str(&format!("\n```text\n{}\n```\n", trimmed(&examples.to_string())));
    }
    for sub in commands(command) {
        section(sub, &name, level + 1, page);
    }
}

fn trimmed(text: &str) -> String {
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
        .trim()
        .to_owned()
}

fn item(arg: &Arg) -> String {
    let values = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .map(|names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" "));
    let mut names: Vec<String> = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    let name = match (names.is_empty(), values) {
        (true, values) => values.unwrap_or_else(|| arg.get_id().to_string()),
        (false, Some(values)) => format!("{} {values}", names.join(", ")),
        (false, None) => names.join(", "),
    };
    let help = arg.get_help().map(|help| help.to_string()).unwrap_or_default();
    // In a list a line break would end the item.
    let mut line = format!("* `{name}`: {}", help.split_whitespace().collect::<Vec<_>>().join(" "));
    if arg.get_action().takes_values() {
        let possible: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !possible.is_empty() {
            line.push_str(&format!(" ({})", possible.join(", ")));
        }
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        if !defaults.is_empty() {
            line.push_str(&format!(" [default: {}]", defaults.join(", ")));
        }
    }
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_commands_is_current() {
        let page = include_str!("../../../docs/commands.md");
        let now = markdown();
        let first = page.lines().zip(now.lines()).find(|(page, now)| page != now);
        assert!(
            page == now,
            "docs/commands.md is not what the program says; systole reference > docs/commands.md. The first other line: {first:?}"
        );
    }

    #[test]
    fn every_command_and_option_is_on_the_page_with_a_word_about_it() {
        fn walk(command: &Command, page: &str) {
            for arg in shown(command, false) {
                if let Some(long) = arg.get_long() {
                    assert!(page.contains(&format!("--{long}")), "{} --{long}", command.get_name());
                    assert!(arg.get_help().is_some(), "{} --{long} says nothing", command.get_name());
                }
            }
            for sub in commands(command) {
                assert!(page.contains(&format!(" {}\n", sub.get_name())), "{}", sub.get_name());
                assert!(sub.get_about().is_some(), "{} says nothing", sub.get_name());
                walk(sub, page);
            }
        }
        let mut root = Cli::command();
        root.build();
        walk(&root, &markdown());
    }
}
