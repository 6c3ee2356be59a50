//! CronJobs as jobs.

use super::*;
use crate::job::import::Options;

fn import(text: &str) -> Import {
    let options = Options {
        zone: "UTC".into(),
        ..Options::default()
    };
    read("jobs.yaml", text, &options, &mut Names::default())
}

/// A CronJob with more lines in its spec, in that of the job, and of the container.
fn manifest(spec: &str, job: &str, container: &str) -> String {
    let indented = |text: &str, by: usize| {
        let lines = text.lines().map(|line| format!("{}{line}\n", " ".repeat(by)));
        lines.collect::<String>()
    };
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{ name: a }}\nspec:\n  schedule: \"0 3 * * *\"\n{}  jobTemplate:\n    spec:\n{}      template:\n        spec:\n          restartPolicy: Never\n          containers:\n          - name: a\n            image: shop/a:1\n{}",
        indented(spec, 2),
        indented(job, 6),
        indented(container, 12)
    )
}

fn spec(spec: &str, job: &str, container: &str) -> JobSpec {
    let text = manifest(spec, job, container);
    let found = import(&text);
    assert_eq!(found.refused, [], "{text}");
    found.jobs.into_iter().next().expect("a job").spec
}

const RUN: &str = "command: [run]";

#[test]
fn policies_have_their_counterparts() {
    for (text, blocking, concurrent) in [
        ("", BlockingKind::Concurrent, Some(ALLOW_MAX)),
        ("concurrencyPolicy: Forbid", BlockingKind::DiscardLater, None),
        ("concurrencyPolicy: Replace", BlockingKind::CoverEarly, None),
    ] {
        let spec = spec(text, "", RUN);
        assert_eq!(
            (spec.blocking, spec.max_concurrent),
            (Some(blocking), concurrent),
            "{text}"
        );
    }
    let late = spec("startingDeadlineSeconds: 300\ntimeZone: Asia/Tokyo\n", "", RUN)
        .trigger
        .remove(0);
    assert_eq!(
        (late.misfire, late.misfire_threshold.as_deref()),
        (Some(Misfire::Skip), Some("5m"))
    );
    assert_eq!(late.zone.as_deref(), Some("Asia/Tokyo"));
    let default = spec("", "", RUN);
    assert_eq!(
        (default.trigger[0].misfire, default.trigger[0].zone.as_deref()),
        (None, Some("UTC"))
    );
    let retry = default.retry.expect("six retries");
    assert_eq!(
        (retry.max_retries, retry.delay.as_deref(), retry.cap.as_deref()),
        (Some(6), Some("10s"), Some("6m"))
    );
    let bounded = spec("", "backoffLimit: 0\nactiveDeadlineSeconds: 3600\n", RUN);
    assert_eq!((bounded.retry, bounded.timeout.as_deref()), (None, Some("1h")));
}

#[test]
fn commands_have_their_variables_and_limits() {
    let spec = spec(
        "",
        "",
        "command: [\"sh\", \"-c\"]\nargs:\n- |\n  echo \"$(GREETING)\" $$(date) $(date) $HOME\nenv:\n- { name: WHO, value: all }\n- name: GREETING\n  value: hello $(WHO)\n- { name: N, value: \"3\" }\nresources:\n  limits: { memory: 512Mi, cpu: 250m }\n",
    );
    assert_eq!(spec.command, ["sh", "-c", "echo \"hello all\" $(date) $(date) $HOME\n"]);
    assert_eq!(spec.env["N"], "3");
    let limits = spec.limits.expect("limits");
    assert_eq!(
        (limits.memory_max.as_deref(), limits.cpu_max),
        (Some("512M"), Some(0.25))
    );
}

#[test]
fn what_is_around_the_command_is_named_with_its_line() {
    let text = manifest(
        "suspend: true",
        "ttlSecondsAfterFinished: 60",
        "command: [run]\nenvFrom:\n- secretRef: { name: db }\nenv:\n- name: PASSWORD\n  valueFrom:\n    secretKeyRef: { name: db, key: password }\nvolumeMounts:\n- { name: data, mountPath: /data }\n",
    );
    let found = import(&format!("# comment\n---\n{text}"));
    let notes = found.jobs[0].notes.join("\n");
    for words in [
        "jobs.yaml:8: suspend: ",
        "jobs.yaml:11: ttlSecondsAfterFinished: ",
        "jobs.yaml:17: image shop/a:1: ",
        "envFrom secret db: ",
        "env PASSWORD: is from secret db, key password",
        "volume data (unknown) at /data: ",
    ] {
        assert!(notes.contains(words), "{words}\n{notes}");
    }
    assert!(found.jobs[0].spec.env.is_empty());
}

#[test]
fn one_bad_document_hides_no_other() {
    let good = manifest("", "", RUN);
    let text = format!(
        "{good}---\nkind: [\n---\n{}\n---\napiVersion: v1\nkind: Service\nmetadata: {{ name: web }}\n--- # a list\napiVersion: v1\nkind: List\nitems:\n{}",
        good.replace("name: a }", "name: {{ .Values.name }} }"),
        good.lines()
            .enumerate()
            .map(|(index, line)| format!("{}{line}\n", if index == 0 { "- " } else { "  " }))
            .collect::<String>()
    );
    let found = import(&text);
    let names: Vec<_> = found.jobs.iter().map(|job| job.spec.name.as_str()).collect();
    assert_eq!(names, ["a", "a-2"]);
    assert_eq!(found.refused.len(), 2, "{:?}", found.refused);
    assert!(
        found.refused[1].reason.contains("helm template"),
        "{:?}",
        found.refused[1]
    );
    assert!(found.notes[0].1.contains("Service web"), "{:?}", found.notes);
}

#[test]
fn what_would_run_something_else_is_refused_with_the_reason() {
    for (job, container, words) in [
        ("", "args: [x]", "no command"),
        ("parallelism: 4", RUN, "parallelism is 4"),
        ("completions: 3", RUN, "completions is 3"),
        ("completionMode: Indexed", RUN, "Indexed"),
        (
            "",
            "command: [\"$(P)\"]\nenv:\n- { name: P, valueFrom: { secretKeyRef: { name: s, key: k } } }",
            "secret s, key k",
        ),
        (
            "",
            "command: [run, \"$(P)\"]\nenvFrom:\n- configMapRef: { name: c }",
            "configMap c",
        ),
        ("backoffLimit: many", RUN, "backoffLimit"),
    ] {
        let text = manifest("", job, container);
        let found = import(&text);
        let reason = found.refused.first().map_or("", |refused| refused.reason.as_str());
        assert!(reason.contains(words), "{words}: {reason}\n{text}");
    }
    for (text, words) in [
        ("apiVersion: batch/v2\nkind: CronJob\n", "batch/v1"),
        ("kind: CronJob\napiVersion: batch/v1\n", "no spec"),
        ("a: 1\n", "no kind"),
        ("a: &x 1\n", "anchors"),
    ] {
        let found = import(text);
        assert!(found.refused[0].reason.contains(words), "{text}: {:?}", found.refused);
    }
    let two = format!("{}          - {{ name: sidecar, image: x }}\n", manifest("", "", RUN));
    assert!(import(&two).refused[0].reason.contains("2 containers"));
    let cron = manifest("", "", RUN).replace("0 3 * * *", "0 25 * * *");
    assert!(import(&cron).refused[0].reason.contains("hour 25"));
}
