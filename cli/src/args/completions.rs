//! `completions`.

use clap::{ArgAction, Args};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole completions bash > ~/.local/share/bash-completion/completions/systole
  systole completions fish > ~/.config/fish/completions/systole.fish")]
pub struct CompletionsArgs {
    #[arg(value_name = "SHELL", action = ArgAction::Set)]
    pub shell: clap_complete::Shell,
}
