//! What a unit says and a job cannot: one sentence for each setting, so that nothing is lost without a word.

use super::about;
use super::unit::{Setting, Unit, is_yes};

/// Settings that became a part of the job, or were told of by whoever read them.
const DONE: [(&str, &[&str]); 3] = [
    (
        "Timer",
        &[
            "OnCalendar",
            "OnUnitActiveSec",
            "OnUnitInactiveSec",
            "OnBootSec",
            "OnStartupSec",
            "OnActiveSec",
            "OnClockChange",
            "OnTimezoneChange",
            "RandomizedDelaySec",
            "Persistent",
            "Unit",
            "RemainAfterElapse",
        ],
    ),
    (
        "Unit",
        &["Description", "Documentation", "StartLimitBurst", "SourcePath"],
    ),
    (
        "Service",
        &[
            "Type",
            "ExecStart",
            "ExecStartPre",
            "ExecStartPost",
            "User",
            "Group",
            "WorkingDirectory",
            "Environment",
            "EnvironmentFile",
            "TimeoutStartSec",
            "TimeoutStopSec",
            "TimeoutSec",
            "RuntimeMaxSec",
            "KillSignal",
            "Nice",
            "UMask",
            "MemoryMax",
            "MemoryLimit",
            "CPUQuota",
            "TasksMax",
            "LimitNOFILE",
            "LimitCORE",
            "LimitFSIZE",
            "Restart",
            "RestartSec",
            "StartLimitBurst",
            // Said by every service, and true of every task.
            "SyslogIdentifier",
            "SyslogFacility",
        ],
    ),
];

/// Keys, or beginnings of keys with a `*`, and what to know about them.
const WORDS: [(&[&str], &str); 17] = [
    (
        &["AccuracySec"],
        "runs were gathered within it; here each starts on time",
    ),
    (&["WakeSystem"], "no host is woken; it must be up"),
    (
        &["FixedRandomDelay"],
        "the delay of a host was always the same; here it is of each fire (jitter)",
    ),
    (
        &[
            "After",
            "Before",
            "Wants",
            "Requires",
            "Requisite",
            "BindsTo",
            "PartOf",
            "Upholds",
            "Conflicts",
            "RequiresMountsFor",
            "WantsMountsFor",
        ],
        "other units are neither waited for nor started; a trigger after = { job = … } follows another job",
    ),
    (
        &["Condition*", "Assert*", "ExecCondition"],
        "is not asked: the job runs all the same; test it in the command",
    ),
    (
        &["OnFailure", "OnSuccess"],
        "write [[job.alarm]] with when = \"failure\", or a job with the trigger after = { job = …, outcome = \"failed\" }",
    ),
    (
        &["ExecStop", "ExecStopPost", "ExecReload"],
        "is not run; a command that tidies up belongs into the job's own",
    ),
    (
        &["DynamicUser"],
        "no user is made for it: it has the user of the runner, unless you write run_as",
    ),
    (
        &[
            "Protect*",
            "Private*",
            "Restrict*",
            "NoNewPrivileges",
            "ReadWrite*",
            "ReadOnly*",
            "Inaccessible*",
            "ExecPaths",
            "NoExecPaths",
            "TemporaryFileSystem",
            "Bind*",
            "SystemCall*",
            "LockPersonality",
            "MemoryDenyWriteExecute",
            "RemoveIPC",
            "CapabilityBoundingSet",
            "AmbientCapabilities",
            "SecureBits",
            "Device*",
            "ProcSubset",
            "IPAddress*",
            "SocketBind*",
            "KeyringMode",
            "MountFlags",
            "SELinuxContext",
            "AppArmorProfile",
            "NetworkNamespacePath",
        ],
        "there is no such sandbox here: the command has all rights of its user",
    ),
    (
        &[
            "StateDirectory*",
            "CacheDirectory*",
            "LogsDirectory*",
            "RuntimeDirectory*",
            "ConfigurationDirectory*",
        ],
        "the folder is not made; make it on the host",
    ),
    (
        &["Standard*", "TTY*"],
        "the output is kept (systole logs) and goes nowhere else; stdin is empty",
    ),
    (
        &[
            "IO*",
            "CPU*",
            "Startup*",
            "Memory*",
            "OOM*",
            "NUMA*",
            "Slice",
            "Delegate*",
            "Block*",
            "Limit*",
            "Tasks*",
            "Timer*",
            "LogRateLimit*",
            "LogLevelMax",
        ],
        "is not set here; limits has memory_max, cpu_max, pids_max, open_files_max, file_size_max, nice",
    ),
    (
        &[
            "LoadCredential*",
            "SetCredential*",
            "ImportCredential",
            "PAMName",
            "SupplementaryGroups",
            "PassEnvironment",
            "UnsetEnvironment",
        ],
        "is not given to the command; the environment is env, env_file and nothing else",
    ),
    (
        &["KillMode", "SendSIGKILL", "SendSIGHUP", "FinalKillSignal"],
        "all processes of a task are ended: kill_signal, and SIGKILL after kill_grace",
    ),
    (
        &[
            "SuccessExitStatus",
            "RestartPreventExitStatus",
            "RestartForceExitStatus",
        ],
        "only 0 is a success here; retry.exit_codes says which others are retried",
    ),
    (
        &["RemainAfterExit"],
        "systemd would have run it once until it is stopped; here it runs with each fire",
    ),
    (&["StartLimit*"], "starts are not counted here"),
];

fn fits(key: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => key == pattern,
    }
}

fn words(setting: &Setting) -> Option<&'static str> {
    let Setting {
        section, key, value, ..
    } = setting;
    let done = DONE
        .iter()
        .any(|(of, keys)| of == section && keys.contains(&key.as_str()));
    // What a manager of units needs, and comments of other programs.
    if done || section == "Install" || section.starts_with("X-") || key.starts_with("X-") || value.is_empty() {
        return None;
    }
    let silent = match key.as_str() {
        "DefaultDependencies" | "RefuseManualStart" | "RefuseManualStop" | "StopWhenUnneeded" => true,
        "StandardOutput" | "StandardError" => matches!(value.as_str(), "journal" | "inherit" | "syslog"),
        "StandardInput" => value == "null",
        "KillMode" => value == "control-group",
        "WakeSystem" | "DynamicUser" | "RemainAfterExit" | "FixedRandomDelay" => !is_yes(value),
        _ => false,
    };
    if silent {
        return None;
    }
    let known = WORDS
        .iter()
        .find(|(patterns, _)| patterns.iter().any(|pattern| fits(key, pattern)));
    Some(known.map_or("has no counterpart here and was left out", |(_, words)| words))
}

/// One sentence for each setting that needs one, in the order of the files.
pub fn all(unit: &Unit) -> Vec<String> {
    let settings = unit.settings.iter();
    settings
        .filter_map(|setting| Some(about(setting, words(setting)?)))
        .collect()
}
