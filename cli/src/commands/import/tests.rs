//! What is written for real inputs (`cli/tests/import/`), kept as files, and always right by the rules of job files.

use super::*;
use systole_shared::job::file::{JobFile, Set, Syntax};

/// 2026-11-29T00:00:00Z.
const NOW: i64 = 1_795_910_400_000;

fn options(zone: &str) -> Options {
    Options {
        zone: zone.into(),
        ..Options::default()
    }
}

fn inputs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

/// Files of the inputs, without the folder of this checkout.
fn files(names: &[&str]) -> Vec<(String, String)> {
    let read = |name: &&str| {
        let text = std::fs::read_to_string(inputs().join(name)).expect(name);
        ((*name).to_owned(), text)
    };
    names.iter().map(read).collect()
}

/// The file that is written reads back with all its jobs, and `systole job check` has nothing to say against it.
#[track_caller]
fn is_right(written: &str, imports: &[Import]) {
    let file = JobFile::read(written, Syntax::Toml);
    assert_eq!(file.faults, [], "{written}");
    let mut set = Set::default();
    set.add("imported.toml", file);
    let checked = systole_scheduler::job_files::check(&set, NOW, true);
    assert_eq!(checked.faults.len(), 0, "{:?}\n{written}", checked.faults);
    let read: Vec<&JobSpec> = checked.jobs.iter().map(|job| &job.spec).collect();
    let specs: Vec<&JobSpec> = imports
        .iter()
        .flat_map(|import| &import.jobs)
        .map(|job| &job.spec)
        .collect();
    assert_eq!(read, specs, "{written}");
    assert!(specs.iter().all(|spec| spec.paused), "{written}");
    for job in &checked.jobs {
        assert_eq!(job.warnings, [], "{written}");
    }
}

#[track_caller]
fn golden(name: &str, kind: &Kind, imports: &[Import]) {
    let written = job_file(kind, imports);
    is_right(&written, imports);
    crate::golden::check(name, &written);
}

#[test]
fn crontabs_are_written_as_they_were() {
    let files = files(&["crontab"]);
    let (name, text) = &files[0];
    let import = crontab::read(name, text, false, &options("Europe/Berlin"), &mut Names::default());
    golden("import_crontab", &CRONTAB, &[import]);
}

#[test]
fn timers_are_written_as_they_were() {
    let folder = inputs().join("systemd");
    let mut import = units::import(&[folder], &options("Europe/Berlin")).expect("units");
    // Without the folder of this checkout.
    let long = format!("{}/", inputs().display());
    let short = |text: &mut String| *text = text.replace(&long, "");
    for job in &mut import.jobs {
        short(&mut job.origin.file);
        job.notes.iter_mut().for_each(short);
    }
    for refused in &mut import.refused {
        short(&mut refused.origin.file);
    }
    golden("import_systemd", &SYSTEMD, &[import]);
}

#[test]
fn manifests_are_written_as_they_were() {
    let mut names = Names::default();
    let imports: Vec<Import> = files(&["kubernetes/shop.yaml", "kubernetes/list.json"])
        .iter()
        .map(|(name, text)| kubernetes::read(name, text, &options("UTC"), &mut names))
        .collect();
    golden("import_kubernetes", &KUBERNETES, &imports);
}

#[test]
fn tables_of_xxl_job_are_written_as_they_were() {
    let files = files(&["xxl-job/dump.sql", "xxl-job/jobs.csv", "xxl-job/groups.csv"]);
    let zone = options("Asia/Shanghai");
    let imports = xxl_job::read(&files, Some("dba-mail"), &zone, &mut Names::default());
    golden("import_xxl_job", &XXL_JOB, &imports);
}

#[test]
fn an_instance_that_is_named_has_the_file_of_its_template() {
    let timer = inputs().join("systemd/machine@web-1.timer");
    let import = units::import(&[timer], &options("UTC")).expect("units");
    assert!(import.refused[0].reason.contains("machine@web-1.service"), "{import:?}");
    let folder = inputs().join("kubernetes");
    assert!(units::import(&[folder], &options("UTC")).is_err());
}
