//! The texts below the options, for a terminal of any width.

use super::Cli;
use clap::{Command, CommandFactory as _};
use std::ffi::OsString;

/// The help that this line asks for. Elsewhere the texts stay as they are written: pages have a width of their own.
pub(super) fn asked(line: &[OsString]) -> Option<clap::Error> {
    flowing(Cli::command()).try_get_matches_from(line).err()
}

fn flowing(command: Command) -> Command {
    let text = command.get_after_help().map(|text| paragraphs(&text.to_string()));
    let command = command.mut_subcommands(flowing);
    match text {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Joins lines that were broken within a sentence. What is indented, and what follows the end of a sentence or a colon, stays a line of
/// its own.
fn paragraphs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let is_prose = line.starts_with(|first: char| !first.is_whitespace());
        if index > 0 {
            out.push(if goes_on && is_prose { ' ' } else { '\n' });
        }
        out.push_str(line);
        goes_on = is_prose && !line.ends_with(['.', ':']);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_within_a_sentence_become_one_and_examples_stay() {
        let written = "Waits for it, and then\ngoes on.\nThe next.\n\nExamples:\n  systole a\n  systole b\n\nExit status: 0 good,\n1 bad";
        assert_eq!(
            paragraphs(written),
            "Waits for it, and then goes on.\nThe next.\n\nExamples:\n  systole a\n  systole b\n\nExit status: 0 good, 1 bad"
        );
        assert_eq!(paragraphs(""), "");
    }

    #[test]
    fn the_help_of_every_command_flows() {
        let line = ["systole", "wait", "--help"].map(OsString::from);
        let help = asked(&line).expect("help");
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
        let root = flowing(Cli::command());
        let wait = root.find_subcommand("wait").expect("there").get_after_help();
        let text = wait.expect("a text").to_string();
        assert!(text.contains("the exit status is that of `systole run`"), "{text}");
        let job = root.find_subcommand("job").expect("there");
        let diff = job.find_subcommand("diff").expect("there").get_after_help();
        let text = diff.expect("a text").to_string();
        assert!(text.contains("what the last change did.\n"), "{text}");
    }
}
