//! What each call needs: the one table of it. A call that is not in it is refused as unknown, whoever asks.

use systole_shared::policy::access::Needs;

/// Calls of gRPC by their path, and plain HTTP by method and path.
pub const CALLS: &[(&str, Needs)] = &[
    ("/systole.v1.TaskService/Submit", Needs::Operate),
    ("/systole.v1.TaskService/Get", Needs::View),
    ("/systole.v1.TaskService/List", Needs::View),
    ("/systole.v1.TaskService/Count", Needs::View),
    ("/systole.v1.TaskService/Cancel", Needs::Operate),
    ("/systole.v1.TaskService/Watch", Needs::View),
    ("/systole.v1.TaskService/ReadOutput", Needs::View),
    ("/systole.v1.TaskService/Explain", Needs::View),
    ("/systole.v1.JobService/Apply", Needs::Operate),
    ("/systole.v1.JobService/Get", Needs::View),
    ("/systole.v1.JobService/List", Needs::View),
    ("/systole.v1.JobService/Versions", Needs::View),
    ("/systole.v1.JobService/Delete", Needs::Operate),
    ("/systole.v1.JobService/SetPaused", Needs::Operate),
    ("/systole.v1.JobService/Trigger", Needs::Operate),
    ("/systole.v1.JobService/Enqueue", Needs::Operate),
    ("/systole.v1.JobService/Restore", Needs::Operate),
    ("/systole.v1.JobService/ResetTriggers", Needs::Operate),
    ("/systole.v1.JobService/Runs", Needs::View),
    ("/systole.v1.JobService/CountRuns", Needs::View),
    ("/systole.v1.JobService/Occurrences", Needs::View),
    ("/systole.v1.JobService/Next", Needs::View),
    ("/systole.v1.JobService/ListCalendars", Needs::View),
    ("/systole.v1.JobService/ListGroups", Needs::View),
    ("/systole.v1.JobService/Backfill", Needs::Operate),
    ("/systole.v1.JobService/ListBackfills", Needs::View),
    ("/systole.v1.JobService/CancelBackfill", Needs::Operate),
    ("/systole.v1.JobService/DeleteCalendars", Needs::Operate),
    ("/systole.v1.JobService/DeleteGroups", Needs::Operate),
    ("/systole.v1.JobService/DeclareDead", Needs::Operate),
    ("/systole.v1.LeaseService/Acquire", Needs::Operate),
    ("/systole.v1.LeaseService/Renew", Needs::Operate),
    ("/systole.v1.LeaseService/Release", Needs::Operate),
    ("/systole.v1.LeaseService/Get", Needs::View),
    ("/systole.v1.LeaseService/List", Needs::View),
    ("/systole.v1.LeaseService/Revoke", Needs::Operate),
    ("/systole.v1.AlarmService/List", Needs::View),
    ("/systole.v1.AlarmService/ListChannels", Needs::View),
    ("/systole.v1.AlarmService/Test", Needs::Operate),
    ("/systole.v1.AlarmService/Acknowledge", Needs::Operate),
    ("/systole.v1.RunnerService/Heartbeat", Needs::Run),
    ("/systole.v1.RunnerService/HeartbeatIdle", Needs::Run),
    ("/systole.v1.RunnerService/UploadOutput", Needs::Run),
    ("/systole.v1.RunnerService/NextFetch", Needs::Run),
    ("/systole.v1.RunnerService/PutFetched", Needs::Run),
    ("/systole.v1.RunnerAdmin/List", Needs::View),
    ("/systole.v1.RunnerAdmin/Cordon", Needs::Operate),
    ("/systole.v1.RunnerAdmin/Uncordon", Needs::Operate),
    ("/systole.v1.RunnerAdmin/Remove", Needs::Operate),
    ("/systole.v1.ClusterAdmin/Alarms", Needs::View),
    ("/systole.v1.ClusterAdmin/Status", Needs::View),
    ("/systole.v1.ClusterAdmin/Examine", Needs::View),
    ("/systole.v1.ClusterAdmin/Confirm", Needs::Administer),
    ("/systole.v1.ClusterAdmin/Pause", Needs::Operate),
    ("/systole.v1.ClusterAdmin/Resume", Needs::Operate),
    ("/systole.v1.ClusterAdmin/Backup", Needs::Administer),
    ("/systole.v1.AccessService/CreateToken", Needs::Administer),
    ("/systole.v1.AccessService/ListTokens", Needs::Administer),
    ("/systole.v1.AccessService/RevokeTokens", Needs::Administer),
    ("/systole.v1.AccessService/ListAudit", Needs::View),
    ("/systole.v1.AccessService/CreateJoinToken", Needs::Administer),
    // Carries a token of its own kind, which is looked at there.
    ("/systole.v1.AccessService/Join", Needs::Nothing),
    ("/systole.v1.AccessService/RotateToken", Needs::Run),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Needs::View),
    // Says only whether this replica serves, so balancers may ask without a token.
    ("/grpc.health.v1.Health/Check", Needs::Nothing),
    ("/grpc.health.v1.Health/Watch", Needs::Nothing),
    ("GET /healthz", Needs::Nothing),
    ("GET /readyz", Needs::Nothing),
    ("GET /metrics", Needs::View),
    ("GET /v1/openapi.json", Needs::View),
    ("POST /v1/tasks", Needs::Operate),
    ("GET /v1/tasks/{id}", Needs::View),
    ("DELETE /v1/tasks/{id}", Needs::Operate),
    ("GET /v1/tasks/{id}/output", Needs::View),
];

/// The line of a call of gRPC.
pub fn of_grpc(path: &str) -> Option<usize> {
    CALLS.iter().position(|(call, _)| *call == path)
}

/// The line of a route of plain HTTP. HEAD is a GET of which only the head is sent.
pub fn of_http(method: &http::Method, route: &str) -> Option<usize> {
    let method = match method {
        &http::Method::HEAD => "GET",
        method => method.as_str(),
    };
    CALLS
        .iter()
        .position(|(call, _)| call.split_once(' ') == Some((method, route)))
}

/// Methods that a route of plain HTTP takes, for `Allow`; empty: there is no such route.
pub fn methods_of(route: &str) -> Vec<&'static str> {
    let mut methods: Vec<&str> = CALLS
        .iter()
        .filter_map(|(call, _)| call.split_once(' '))
        .filter(|(_, of)| *of == route)
        .map(|(method, _)| method)
        .collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods
}

/// The table as the documentation has it.
pub fn table() -> String {
    let mut text = String::from(
        "| call | viewer | operator | admin | runner | without a token |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for (call, needs) in CALLS {
        use systole_shared::policy::access::Role::{Admin, Operator, Runner, Viewer};
        let call = call.trim_start_matches('/');
        text.push_str(&format!("| `{call}` |"));
        for role in [Viewer, Operator, Admin, Runner] {
            text.push_str(if role.may(*needs) { " yes |" } else { " |" });
        }
        text.push_str(if *needs == Needs::Nothing { " yes |\n" } else { " |\n" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_named_once() {
        let mut seen = std::collections::HashSet::new();
        for (call, _) in CALLS {
            assert!(seen.insert(call), "{call} is named twice");
        }
        assert_eq!(of_grpc("/systole.v1.TaskService/Nothing"), None);
        let head = of_http(&http::Method::HEAD, "/healthz").map(|at| CALLS[at]);
        assert_eq!(head, Some(("GET /healthz", Needs::Nothing)));
        assert_eq!(of_http(&http::Method::POST, "/healthz"), None);
        assert_eq!(methods_of("/v1/tasks/{id}"), ["GET", "DELETE", "HEAD"]);
        assert!(methods_of("/v1/nothing").is_empty());
    }

    #[test]
    fn the_documentation_has_the_table() {
        let docs = include_str!("../../../docs/access.md");
        assert!(docs.contains(&table()), "docs/access.md must contain:\n{}", table());
    }
}
