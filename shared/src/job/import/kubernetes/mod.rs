//! CronJobs of Kubernetes (`batch/v1`): one or many documents, lists of them, YAML or JSON. What stands around the command in a
//! cluster (image, volumes, secrets) is not here; each of them is named, with its line.

mod container;
mod schedule;

use super::{Import, Imported, Names, Options, Origin, base};
use crate::job::definition::{BlockingKind, JobSpec, RetryKind, RetrySpec};
use crate::job::file::tree::{Tree, join};
use crate::job::file::yaml;
use crate::limits::{KILL_GRACE_MS_MAX, RETRIES_MAX};
use crate::time::exact_duration;
use crate::trigger::misfire::Misfire;
use serde_json::Value;

/// Attempts after the first where a manifest says nothing.
const BACKOFF_LIMIT: u64 = 6;
/// `concurrencyPolicy: Allow` has no bound; a job has.
const ALLOW_MAX: u32 = 10;

/// A place in a document.
#[derive(Clone)]
struct Node<'a> {
    file: &'a str,
    /// Of the document in its file, from 0.
    first_line: usize,
    tree: &'a Tree,
    value: &'a Value,
    path: String,
}

impl<'a> Node<'a> {
    fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Node {
            value,
            path: join(&self.path, key),
            ..self.clone()
        })
    }

    fn find(&self, keys: &[&str]) -> Option<Node<'a>> {
        keys.iter().try_fold(self.clone(), |node, key| node.get(key))
    }

    fn items(&self) -> Vec<Node<'a>> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items
            .map(|(index, value)| Node {
                value,
                path: format!("{}[{index}]", self.path),
                ..self.clone()
            })
            .collect()
    }

    fn list(&self, key: &str) -> Vec<Node<'a>> {
        self.get(key).map(|node| node.items()).unwrap_or_default()
    }

    fn entries(&self) -> Vec<(&'a str, Node<'a>)> {
        let keys = self.value.as_object().into_iter().flat_map(|map| map.keys());
        keys.filter_map(|key| Some((key.as_str(), self.get(key)?))).collect()
    }

    /// A scalar as it is written.
    fn text(&self) -> Option<String> {
        match self.value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(self.value.to_string()),
            _ => None,
        }
    }

    fn text_of(&self, key: &str) -> Option<String> {
        self.get(key)?.text()
    }

    fn number_of(&self, key: &str) -> Result<Option<u64>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(node) => match node.value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{key} is no number from 0 up")),
            },
        }
    }

    fn origin(&self) -> Origin {
        let line = self.tree.key_place(&self.path).map_or(1, |place| place.line);
        Origin::new(self.file, self.first_line + line)
    }
}

/// As the older YAML of Kubernetes has it.
fn is_true(node: &Node<'_>) -> bool {
    let words = ["true", "yes", "on", "y"];
    node.text()
        .is_some_and(|text| words.iter().any(|word| text.eq_ignore_ascii_case(word)))
}

#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, node: &Node<'_>, what: &str, text: &str) {
        self.0.push(format!("{}: {what}: {text}", node.origin()));
    }

    /// Fields that are neither known nor without a meaning here.
    fn others(&mut self, node: &Node<'_>, known: &[&str], words: &[(&str, &str)]) {
        for (key, inner) in node.entries() {
            if known.contains(&key) {
                continue;
            }
            let found = words.iter().find(|(name, _)| *name == key);
            let text = found.map_or("has no counterpart here and was left out", |(_, text)| text);
            // An empty one is the default, as a cluster writes it.
            if !text.is_empty() && inner.value != &Value::Object(serde_json::Map::new()) {
                self.add(&inner, key, text);
            }
        }
    }
}

const SPEC_WORDS: [(&str, &str); 2] = [
    (
        "successfulJobsHistoryLimit",
        "the history of a job is kept by age (scheduler --keep)",
    ),
    (
        "failedJobsHistoryLimit",
        "the history of a job is kept by age (scheduler --keep)",
    ),
];

const JOB_WORDS: [(&str, &str); 4] = [
    (
        "ttlSecondsAfterFinished",
        "the history of a job is kept by age (scheduler --keep)",
    ),
    (
        "podFailurePolicy",
        "which failures are retried say retry.kinds and retry.exit_codes",
    ),
    ("completionMode", ""),
    (
        "suspend",
        "is said of the CronJob only; imported jobs are paused anyway",
    ),
];

const POD_WORDS: [(&str, &str); 14] = [
    ("nodeSelector", ""),
    ("volumes", ""),
    ("initContainers", ""),
    ("affinity", "hosts are chosen by require, queue and route"),
    ("tolerations", "hosts are chosen by require, queue and route"),
    (
        "topologySpreadConstraints",
        "hosts are chosen by require, queue and route",
    ),
    ("nodeName", "write route = \"pinned\" and runner"),
    (
        "serviceAccountName",
        "the command has the rights of its user on the host, and no token of a cluster",
    ),
    ("imagePullSecrets", "no image is pulled"),
    (
        "securityContext",
        "the command has the rights of its user on the host; write run_as for another one",
    ),
    ("priorityClassName", "write priority, 0 to 9"),
    ("hostNetwork", "the command has the network of its host"),
    ("schedulerName", ""),
    ("dnsPolicy", ""),
];

/// Fields of a pod that are read, or have no meaning outside of a cluster.
const POD_KNOWN: [&str; 7] = [
    "containers",
    "restartPolicy",
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "serviceAccount",
    "automountServiceAccountToken",
    "enableServiceLinks",
];

fn pod(node: &Node<'_>, spec: &mut JobSpec, notes: &mut Notes) -> Result<(), String> {
    let containers = node.list("containers");
    let [container] = &containers[..] else {
        return Err(format!(
            "has {} containers; a job starts one command. Make a job of each, or a script of all",
            containers.len()
        ));
    };
    container::read(container, node, spec, notes)?;
    for init in node.list("initContainers") {
        let name = init.text_of("name").unwrap_or_default();
        notes.add(
            &init,
            &format!("initContainer {name}"),
            "is not started; what it does must be done before, in the command or in a job of its own with after",
        );
    }
    for (label, value) in node.get("nodeSelector").map(|node| node.entries()).unwrap_or_default() {
        let text = format!(
            "hosts with it: give their runners a label, and write it into require ({})",
            value.text().unwrap_or_default()
        );
        notes.add(&value, &format!("nodeSelector {label}"), &text);
    }
    notes.others(node, &POD_KNOWN, &POD_WORDS);
    if let Some(seconds) = node.number_of("terminationGracePeriodSeconds")? {
        spec.kill_grace = Some(exact_duration((seconds.saturating_mul(1_000)).min(KILL_GRACE_MS_MAX)));
    }
    Ok(())
}

fn retry(job: &Node<'_>, notes: &mut Notes) -> Result<Option<RetrySpec>, String> {
    let limit = job.number_of("backoffLimit")?.unwrap_or(BACKOFF_LIMIT);
    if limit == 0 {
        return Ok(None);
    }
    let max = u32::try_from(limit).unwrap_or(RETRIES_MAX).min(RETRIES_MAX);
    if limit > RETRIES_MAX.into()
        && let Some(node) = job.get("backoffLimit")
    {
        notes.add(&node, "backoffLimit", &format!("cut to {RETRIES_MAX}"));
    }
    Ok(Some(RetrySpec {
        policy: Some(RetryKind::Exponential),
        max_retries: Some(max),
        // As the controller of Kubernetes waits.
        delay: Some("10s".into()),
        cap: Some("6m".into()),
        ..RetrySpec::default()
    }))
}

fn job(job: &Node<'_>, spec: &mut JobSpec, notes: &mut Notes) -> Result<(), String> {
    for key in ["parallelism", "completions"] {
        match job.number_of(key)? {
            None | Some(1) => {}
            Some(number) => {
                return Err(format!(
                    "{key} is {number}: several pods for one run; write a job that is a broadcast, or a command that does all"
                ));
            }
        }
    }
    if job.text_of("completionMode").is_some_and(|mode| mode == "Indexed") {
        return Err("completionMode is Indexed: a job here has no index".into());
    }
    let pod_node = job
        .find(&["template", "spec"])
        .ok_or("has no spec.jobTemplate.spec.template.spec")?;
    pod(&pod_node, spec, notes)?;
    spec.retry = retry(job, notes)?;
    let (whole, each) = (
        job.number_of("activeDeadlineSeconds")?,
        pod_node.number_of("activeDeadlineSeconds")?,
    );
    let seconds = [whole, each].into_iter().flatten().min().filter(|&seconds| seconds > 0);
    spec.timeout = seconds.map(|seconds| exact_duration(seconds.saturating_mul(1_000)));
    if let (Some(node), Some(_), true) = (job.get("activeDeadlineSeconds"), whole, spec.retry.is_some()) {
        notes.add(
            &node,
            "activeDeadlineSeconds",
            "held for all attempts together; timeout holds for each",
        );
    }
    let known = [
        "template",
        "backoffLimit",
        "activeDeadlineSeconds",
        "parallelism",
        "completions",
        "selector",
        "manualSelector",
    ];
    notes.others(job, &known, &JOB_WORDS);
    Ok(())
}

fn cron_job(root: &Node<'_>, mut draft: JobSpec, options: &Options, notes: &mut Notes) -> Result<JobSpec, String> {
    let version = root.text_of("apiVersion").unwrap_or_default();
    if !matches!(version.as_str(), "batch/v1" | "batch/v1beta1") {
        return Err(format!("apiVersion is {version:?}; batch/v1 is read"));
    }
    let spec = root.get("spec").ok_or("has no spec")?;
    let job_node = spec
        .find(&["jobTemplate", "spec"])
        .ok_or("has no spec.jobTemplate.spec")?;
    let text = spec.text_of("schedule").ok_or("has no spec.schedule")?;
    let mut trigger = schedule::trigger(&text).map_err(|error| format!("schedule {text:?}: {error}"))?;
    let named = spec.text_of("timeZone");
    trigger.zone = named.or(trigger.zone).or_else(|| Some(options.zone.clone()));
    if let Some(seconds) = spec.number_of("startingDeadlineSeconds")? {
        trigger.misfire = Some(Misfire::Skip);
        trigger.misfire_threshold = Some(exact_duration(seconds.saturating_mul(1_000)));
    }
    draft.trigger = vec![trigger];
    let policy = spec.text_of("concurrencyPolicy").unwrap_or_else(|| "Allow".into());
    draft.blocking = Some(match policy.as_str() {
        "Forbid" => BlockingKind::DiscardLater,
        "Replace" => BlockingKind::CoverEarly,
        "Allow" => {
            draft.max_concurrent = Some(ALLOW_MAX);
            BlockingKind::Concurrent
        }
        other => {
            return Err(format!(
                "concurrencyPolicy is {other:?}; Allow, Forbid and Replace are known"
            ));
        }
    });
    if let Some(node) = spec.get("suspend").filter(is_true) {
        notes.add(&node, "suspend", "it was suspended; imported jobs are paused anyway");
    }
    let known = [
        "schedule",
        "timeZone",
        "concurrencyPolicy",
        "startingDeadlineSeconds",
        "suspend",
        "jobTemplate",
    ];
    notes.others(&spec, &known, &SPEC_WORDS);
    job(&job_node, &mut draft, notes)?;
    Ok(draft)
}

struct Reader<'a> {
    options: &'a Options,
    names: &'a mut Names,
    out: Import,
}

impl Reader<'_> {
    fn object(&mut self, node: &Node<'_>) {
        let kind = node.text_of("kind").unwrap_or_default();
        let name = node
            .find(&["metadata", "name"])
            .and_then(|name| name.text())
            .unwrap_or_default();
        if kind.ends_with("List") {
            return node.list("items").iter().for_each(|item| self.object(item));
        }
        // The place of an object is that of its kind, since its first line may be any.
        let origin = node.get("kind").map_or_else(|| node.origin(), |kind| kind.origin());
        if kind.is_empty() {
            return self
                .out
                .refuse(origin, "document", "has no kind; it is no object of Kubernetes");
        }
        let text = format!("{kind} {name}");
        if kind != "CronJob" {
            return self
                .out
                .notes
                .push((origin, format!("{text}: is no CronJob, and was passed over")));
        }
        let mut notes = Notes::default();
        let mut draft = base(String::new(), self.options);
        let namespace = node.find(&["metadata", "namespace"]).and_then(|name| name.text());
        draft.tags.extend(namespace.filter(|name| name != "default"));
        match cron_job(node, draft, self.options, &mut notes) {
            Err(reason) => self.out.refuse(origin, text, reason),
            Ok(mut spec) => {
                spec.name = self.names.take(&name);
                let job = Imported {
                    origin,
                    text,
                    spec,
                    notes: notes.0,
                };
                self.out.add(self.names, job);
            }
        }
    }

    fn document(&mut self, file: &str, text: &str, first_line: usize) {
        let is_content = |line: &str| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#') && line != "..."
        };
        let Some(first) = text.lines().position(is_content) else {
            return;
        };
        match yaml::parse(text) {
            Ok(tree) => self.object(&Node {
                file,
                first_line,
                tree: &tree,
                value: &tree.value,
                path: String::new(),
            }),
            Err(faults) => {
                let fault = faults.into_iter().next();
                let place = fault.as_ref().and_then(|fault| fault.place);
                let line = first_line + place.map_or(first + 1, |place| place.line);
                let mut reason = fault.map(|fault| fault.message).unwrap_or_default();
                if text.contains("{{") {
                    reason.push_str("; a template of Helm is read once it is rendered: helm template …");
                }
                self.out.refuse(
                    Origin::new(file, line),
                    text.lines().nth(first).unwrap_or_default(),
                    reason,
                );
            }
        }
    }
}

/// Reads a file of manifests. Documents are told apart as kubectl does, by lines that begin with `---`; one that is no YAML does
/// not hide the others.
pub fn read(file: &str, text: &str, options: &Options, names: &mut Names) -> Import {
    let mut reader = Reader {
        options,
        names,
        out: Import::default(),
    };
    let mut document = String::new();
    let mut first_line = 0;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if line.starts_with("---") {
            reader.document(file, &document, first_line);
            document.clear();
            first_line = index + 1;
        } else {
            document.push_str(line);
            document.push('\n');
        }
    }
    reader.document(file, &document, first_line);
    reader.out
}

#[cfg(test)]
mod tests;
