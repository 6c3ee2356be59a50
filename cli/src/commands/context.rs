//! `systole context`: named clusters.

use crate::args::{AddContextArgs, ContextAction, ContextArgs, Format, Global};
use crate::context::{Context, Contexts};
use crate::failure::{Failure, io_cause};
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json};
use crate::{exit_code, paths};
use std::path::{Path, PathBuf};

const COLUMNS: [Column; 4] = [
    Column::cut("NAME", 12),
    Column::whole("CURRENT"),
    Column::cut("URL", 20),
    Column::cut("TOKEN FILE", 10).droppable(1),
];

pub fn run(global: &Global, args: &ContextArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let path = paths::contexts_file()
        .ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME is set, so there is no place for contexts"))?;
    let mut contexts = Contexts::load(&path)?;
    match &args.action {
        None | Some(ContextAction::Ls) => {
            list(&contexts, &output);
            return Ok(exit_code::OK);
        }
        Some(ContextAction::Add(args)) => add(&mut contexts, global, args)?,
        Some(ContextAction::Use(args)) => {
            contexts.get(&args.name)?;
            contexts.current = Some(args.name.clone());
        }
        Some(ContextAction::Rm(args)) => {
            contexts.get(&args.name)?;
            contexts.contexts.remove(&args.name);
            if contexts.current.as_ref() == Some(&args.name) {
                contexts.current = None;
            }
        }
    }
    contexts.save(&path)?;
    output.note(&match &contexts.current {
        Some(name) => format!("the current context is {name}"),
        None => "no context is current; commands go to this machine".to_owned(),
    });
    Ok(exit_code::OK)
}

fn add(contexts: &mut Contexts, global: &Global, args: &AddContextArgs) -> Result<(), Failure> {
    if contexts.contexts.contains_key(&args.name) {
        return Err(Failure::usage(format!(
            "a context {} exists already; choose another name, or remove it first (`systole context rm {}`)",
            args.name, args.name
        )));
    }
    if global.url.is_empty() {
        return Err(Failure::usage(
            "--url is missing: where is the cluster? Write --url https://HOST:PORT",
        ));
    }
    let context = Context {
        urls: global.url.iter().map(|url| url.as_str().to_owned()).collect(),
        ca: global.ca.as_deref().map(|path| file(path, "--ca")).transpose()?,
        token_file: args
            .token_file
            .as_deref()
            .map(|path| file(path, "--token-file"))
            .transpose()?,
    };
    // Open to others, or no token: better told now than at the first command.
    if let Some(path) = &context.token_file {
        paths::read_token(path)?;
    }
    contexts.contexts.insert(args.name.clone(), context);
    contexts.current.get_or_insert_with(|| args.name.clone());
    Ok(())
}

fn file(path: &Path, option: &str) -> Result<PathBuf, Failure> {
    let bad = |cause: String| Failure::usage(format!("{option}: {}: {cause}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => std::path::absolute(path).map_err(|error| bad(io_cause(&error))),
        Ok(_) => Err(bad("is not a file".into())),
        Err(error) => Err(bad(io_cause(&error))),
    }
}

fn list(contexts: &Contexts, output: &Output) {
    let is_current = |name: &String| contexts.current.as_ref() == Some(name);
    let shown = |(name, context): (&String, &Context)| json::Context {
        name: name.clone(),
        current: is_current(name),
        urls: context.urls.clone(),
        ca: context.ca.as_ref().map(|path| path.display().to_string()),
        token_file: context.token_file.as_ref().map(|path| path.display().to_string()),
    };
    match output.format {
        Format::Json => json::document(&json::Contexts {
            contexts: contexts.contexts.iter().map(shown).collect(),
        }),
        Format::Jsonl => contexts.contexts.iter().for_each(|each| json::object(&shown(each))),
        Format::Id => contexts.contexts.keys().for_each(|name| output::line(name)),
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<Text>> = contexts
                .contexts
                .iter()
                .map(|(name, context)| row(name, context, is_current(name)))
                .collect();
            table::print_or(
                &COLUMNS,
                &rows,
                output,
                "no contexts yet: systole context add NAME --url URL",
            );
        }
    }
}

fn row(name: &str, context: &Context, current: bool) -> Vec<Text> {
    let token = context.token_file.as_deref().map(paths::with_tilde);
    vec![
        plain(name),
        plain(if current { "*" } else { "" }),
        plain(context.urls.join(",")),
        plain(token.unwrap_or_default()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_as_it_was() {
        let context = |url: &str, token: Option<&str>| Context {
            urls: vec![url.into()],
            token_file: token.map(PathBuf::from),
            ..Context::default()
        };
        let rows = [
            row(
                "prod",
                &context("https://10.0.0.5:7410", Some("/etc/systole/ann.token")),
                true,
            ),
            row("lab", &context("http://127.0.0.1:7410", None), false),
        ];
        crate::golden::table("context", &COLUMNS, &rows);
    }
}
