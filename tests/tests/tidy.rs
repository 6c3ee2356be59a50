//! Rules that matter are checked, not hoped for.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("workspace")
        .to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All Rust sources of the workspace, with their paths.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["proto", "shared", "scheduler", "runner", "cli", "tests"]
        .iter()
        .map(|name| root().join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("source");
                found.push((path, text));
            }
        }
    }
    found
}

#[test]
fn every_test_that_the_requirements_name_exists() {
    let functions: HashSet<String> = sources()
        .iter()
        .flat_map(|(_, text)| {
            text.split("fn ")
                .skip(1)
                .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
                .collect::<Vec<String>>()
        })
        .collect();
    let requirements = read("docs/requirements.md");
    let mut named = 0;
    for line in requirements.lines().filter(|line| {
        ["| B-", "| H-", "| R-", "| D", "| X-", "| J-", "| F-"]
            .iter()
            .any(|begin| line.starts_with(begin))
    }) {
        let proof = line.trim_end_matches('|').trim().rsplit('|').next().unwrap_or_default();
        assert!(!proof.trim().is_empty(), "no test and no decision: {line}");
        for name in proof.split('`').skip(1).step_by(2) {
            let function = name.rsplit("::").next().unwrap_or(name);
            if function.contains('/') || function.contains('.') {
                assert!(
                    root().join(function).exists() || root().join("docs").join(function).exists(),
                    "{function} does not exist: {line}"
                );
                continue;
            }
            assert!(functions.contains(function), "no test {function}: {line}");
            named += 1;
        }
    }
    assert!(named > 50, "only {named} tests are named");
    for number in 1..=77 {
        assert!(
            requirements.contains(&format!("| B-{number:03} |")),
            "B-{number:03} is missing"
        );
    }
    for number in 1..=146 {
        assert!(
            requirements.contains(&format!("| X-{number:03} |")),
            "X-{number:03} is missing"
        );
    }
    for number in 14..=47 {
        assert!(
            requirements.contains(&format!("| H-{number:03} |")),
            "H-{number:03} is missing"
        );
    }
}

#[test]
fn only_the_store_contains_sql_and_names_a_driver() {
    for (path, text) in sources() {
        let name = path
            .strip_prefix(root())
            .expect("inside")
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("scheduler/src/") || name.starts_with("scheduler/src/store/") {
            continue;
        }
        for word in ["sqlx::", "INSERT INTO", "UPDATE task", "SELECT "] {
            assert!(
                !text.contains(word),
                "{name} contains {word:?}: SQL and drivers belong into scheduler/src/store"
            );
        }
    }
}

#[test]
fn the_pure_core_depends_on_nothing_that_does_io() {
    let manifest = read("shared/Cargo.toml");
    for name in ["tokio", "sqlx", "tonic", "axum", "nix", "reqwest"] {
        assert!(
            !manifest.lines().any(|line| line.starts_with(name)),
            "shared depends on {name}"
        );
    }
}

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |folder: &str| {
        let mut names: Vec<String> = std::fs::read_dir(root().join(folder))
            .expect("folder")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("migrations/postgres"), names("migrations/sqlite"));
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    let mut pages = vec![
        "README.md".to_owned(),
        "ARCHITECTURE.md".into(),
        "CONTRIBUTING.md".into(),
    ];
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    for page in pages {
        let text = read(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = root().join(&page).parent().expect("folder").join(target);
            assert!(path.exists(), "{page} links to {target}, which does not exist");
        }
    }
}

/// A page that the book does not list is not rendered, and links to it lead nowhere there.
#[test]
fn every_page_of_the_documentation_is_in_the_book_once() {
    let summary = read("docs/SUMMARY.md");
    let index = read("docs/decisions/README.md");
    for (folder, prefix) in [("docs", ""), ("docs/decisions", "decisions/")] {
        for entry in std::fs::read_dir(root().join(folder)).expect("folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".md") || name == "SUMMARY.md" {
                continue;
            }
            let link = format!("]({prefix}{name})");
            assert_eq!(
                summary.matches(&link).count(),
                1,
                "docs/SUMMARY.md must have a line with {link}"
            );
            if !prefix.is_empty() && name != "README.md" {
                assert!(
                    index.contains(&format!("]({name})")),
                    "docs/decisions/README.md must have a line with ]({name})"
                );
            }
        }
    }
}

/// The README's first command: without a default member `cargo run` cannot tell which binary is meant.
#[test]
fn cargo_run_means_the_product() {
    assert!(
        read("Cargo.toml")
            .lines()
            .any(|line| line == "default-members = [\"cli\"]")
    );
    assert!(read("README.md").contains("cargo run --release -- up"));
}
