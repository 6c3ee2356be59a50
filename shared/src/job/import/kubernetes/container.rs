//! The container of a CronJob: its command, and what was around it.

use super::{Node, Notes, is_true};
use crate::job::definition::{JobSpec, LimitsSpec};
use crate::job::import::size;
use std::collections::{BTreeMap, BTreeSet};

const WORDS: [(&str, &str); 8] = [
    ("ports", "the command has the network of its host"),
    (
        "livenessProbe",
        "nothing is asked; silence_timeout ends a task that writes nothing for too long",
    ),
    ("readinessProbe", "nobody waits for it"),
    ("startupProbe", "nobody waits for it; start_timeout bounds the start"),
    (
        "lifecycle",
        "is not run; what is to be done before and after belongs into the command",
    ),
    (
        "securityContext",
        "the command has the rights of its user on the host; a number of a user is one of the image. Write run_as for another one",
    ),
    ("stdin", "stdin is empty"),
    ("stdinOnce", ""),
];

const KNOWN: [&str; 13] = [
    "name",
    "image",
    "command",
    "args",
    "env",
    "envFrom",
    "workingDir",
    "resources",
    "volumeMounts",
    "tty",
    "imagePullPolicy",
    "terminationMessagePath",
    "terminationMessagePolicy",
];

/// What `$(NAME)` may be.
#[derive(Default)]
struct Variables {
    known: BTreeMap<String, String>,
    /// Values that only the cluster has, and where they are from.
    elsewhere: BTreeMap<String, String>,
    /// Whole maps of variables, whose names are not known here.
    open: BTreeSet<String>,
}

impl Variables {
    /// As a cluster does it: `$$` is `$`, a name that nobody knows stays as it is.
    fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
                continue;
            }
            let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) else {
                out.push('$');
                continue;
            };
            let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
            if let Some(value) = self.known.get(name) {
                out.push_str(value);
            } else if let Some(from) = self.elsewhere.get(name) {
                return Err(format!(
                    "$({name}) is from {from}, and not known here; write sh -c and \"${name}\", with the value in env_file"
                ));
            } else if let (true, Some(from)) = (is_name, self.open.first()) {
                return Err(format!(
                    "$({name}) may be from {from}, and is not known here; write sh -c and \"${name}\", with the value in env_file"
                ));
            } else {
                out.push_str(&format!("$({name})"));
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// `secret db, key password`.
fn reference(node: &Node<'_>) -> String {
    let entries = node.entries();
    let Some((kind, inner)) = entries.first() else {
        return "nowhere".into();
    };
    let text = |key: &str| inner.text_of(key).unwrap_or_default();
    match *kind {
        "secretKeyRef" => format!("secret {}, key {}", text("name"), text("key")),
        "configMapKeyRef" => format!("configMap {}, key {}", text("name"), text("key")),
        "fieldRef" => format!("the field {} of the pod", text("fieldPath")),
        "resourceFieldRef" => format!("the resource {} of the pod", text("resource")),
        other => other.to_owned(),
    }
}

fn environment(container: &Node<'_>, notes: &mut Notes) -> Result<Variables, String> {
    let mut variables = Variables::default();
    for source in container.list("envFrom") {
        let kind = |key: &str| {
            Some(format!(
                "{} {}",
                key.trim_end_matches("Ref"),
                source.find(&[key, "name"])?.text()?
            ))
        };
        let from = kind("secretRef")
            .or_else(|| kind("configMapRef"))
            .unwrap_or_else(|| "another object".into());
        notes.add(
            &source,
            &format!("envFrom {from}"),
            "its variables are not here; put them into a file on the host, and write env_file",
        );
        variables.open.insert(from);
    }
    for entry in container.list("env") {
        let Some(name) = entry.text_of("name") else {
            return Err("env has an entry without a name".into());
        };
        if let Some(from) = entry.get("valueFrom") {
            let from = reference(&from);
            notes.add(
                &entry,
                &format!("env {name}"),
                &format!("is from {from}, and not set here; put it into a file on the host, and write env_file"),
            );
            variables.known.remove(&name);
            variables.elsewhere.insert(name, from);
            continue;
        }
        let value = entry.text_of("value").unwrap_or_default();
        let value = variables
            .expand(&value)
            .map_err(|error| format!("env {name}: {error}"))?;
        variables.elsewhere.remove(&name);
        variables.known.insert(name, value);
    }
    Ok(variables)
}

fn volumes(container: &Node<'_>, pod: &Node<'_>, notes: &mut Notes) {
    let kinds: BTreeMap<String, String> = pod
        .list("volumes")
        .iter()
        .filter_map(|volume| {
            let name = volume.text_of("name")?;
            let kind = volume.entries().into_iter().find(|(key, _)| *key != "name");
            Some((name, kind.map_or_else(|| "emptyDir".into(), |(key, _)| key.to_owned())))
        })
        .collect();
    for mount in container.list("volumeMounts") {
        let text = |key: &str| mount.text_of(key).unwrap_or_default();
        let (name, path) = (text("name"), text("mountPath"));
        let kind = kinds.get(&name).map_or("unknown", String::as_str);
        let words = match kind {
            "emptyDir" => "was a fresh directory; a task has one as its working directory",
            "hostPath" => "was a path of the host; write the host's own into the command",
            _ => "is not here; the path must be on the host",
        };
        notes.add(&mount, &format!("volume {name} ({kind}) at {path}"), words);
    }
}

/// `500m` or `0.5`.
fn cpus(text: &str) -> Option<f64> {
    match text.strip_suffix('m') {
        Some(millis) => Some(f64::from(millis.parse::<u32>().ok()?) / 1_000.0),
        None => text.parse().ok(),
    }
}

const QUANTITIES: [(&str, f64); 11] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("m", 1e-3),
    ("", 1.0),
];

/// Bytes of `128Mi`, `1.5G`, `1e9`.
fn bytes(text: &str) -> Option<u64> {
    let (unit, scale) = QUANTITIES.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let bytes = number * scale;
    // Far below where a float could not count them, and never negative.
    (1.0..=1e15).contains(&bytes).then_some(bytes as u64)
}

fn resources(container: &Node<'_>, notes: &mut Notes) -> Option<LimitsSpec> {
    let resources = container.get("resources")?;
    let mut limits = LimitsSpec::default();
    for (name, node) in resources.get("limits").map(|node| node.entries()).unwrap_or_default() {
        let text = node.text().unwrap_or_default();
        let known = match name {
            "memory" => {
                limits.memory_max = bytes(&text).map(size);
                limits.memory_max.is_some()
            }
            "cpu" => {
                limits.cpu_max = cpus(&text);
                limits.cpu_max.is_some()
            }
            _ => false,
        };
        if !known {
            notes.add(
                &node,
                &format!("resources.limits.{name}"),
                &format!("{text:?} is no limit here; left out"),
            );
        }
    }
    if let Some(node) = resources.get("requests") {
        notes.add(
            &node,
            "resources.requests",
            "nothing is reserved here: a host runs as many tasks as it has slots",
        );
    }
    Some(limits).filter(|limits| *limits != LimitsSpec::default())
}

fn words(container: &Node<'_>, key: &str, variables: &Variables) -> Result<Vec<String>, String> {
    let items = container.list(key);
    let read = |(index, item): (usize, &Node<'_>)| {
        let text = item.text().ok_or_else(|| format!("{key}[{index}] is no text"))?;
        variables
            .expand(&text)
            .map_err(|error| format!("{key}[{index}]: {error}"))
    };
    items.iter().enumerate().map(read).collect()
}

pub fn read(container: &Node<'_>, pod: &Node<'_>, spec: &mut JobSpec, notes: &mut Notes) -> Result<(), String> {
    let image = container.text_of("image").unwrap_or_default();
    let variables = environment(container, notes)?;
    let mut command = words(container, "command", &variables)?;
    if command.is_empty() {
        return Err(format!(
            "has no command: what it starts stands in the image {image} (docker inspect shows Entrypoint and Cmd); write it into command"
        ));
    }
    command.extend(words(container, "args", &variables)?);
    spec.command = command;
    if let Some(node) = container.get("image") {
        notes.add(
            &node,
            &format!("image {image}"),
            "no container is started: the program must be on the host. Or write docker run --rm, the image and the command",
        );
    }
    spec.env = variables.known;
    if let Some(node) = container.get("workingDir") {
        notes.add(
            &node,
            "workingDir",
            "was a directory of the image; it must be on the host",
        );
        spec.dir = node.text();
    }
    spec.tty = container.get("tty").is_some_and(|node| is_true(&node));
    spec.limits = resources(container, notes);
    volumes(container, pod, notes);
    notes.others(container, &KNOWN, &WORDS);
    Ok(())
}
