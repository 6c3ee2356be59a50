//! Options of `systole import`.

use super::value::{host, word};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Each entry becomes a job or is refused with the reason, and what systole does in another way is explained; all of that
stands in the file and on stderr. Jobs are paused, so that nothing runs twice: stop it where it is, apply the file, resume
the job. See docs/importing.md.")]
pub struct ImportArgs {
    #[command(subcommand)]
    pub action: ImportAction,
}

#[derive(Debug, Subcommand)]
pub enum ImportAction {
    /// Turn crontabs into a job file on stdout; its jobs are paused
    Crontab(ImportCrontabArgs),
    /// Turn timers of systemd, with their services, into a job file on stdout; its jobs are paused
    Systemd(ImportSystemdArgs),
    /// Turn CronJobs of Kubernetes into a job file on stdout; its jobs are paused
    Kubernetes(ImportKubernetesArgs),
    /// Turn the jobs of xxl-job into a job file on stdout; its jobs are paused
    XxlJob(ImportXxlJobArgs),
}

/// What the jobs are to have.
#[derive(Debug, Args)]
pub struct ImportInto {
    /// Zone of the machine that they are from [default: this machine's; of Kubernetes UTC]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Only this host runs the jobs
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub runner: Option<String>,
    /// Put this before each name, such as db-01.
    #[arg(long, value_name = "P", default_value = "", value_parser = prefix)]
    pub prefix: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crontab -l | systole import crontab - > jobs/ann.toml
  systole import crontab /etc/crontab /etc/cron.d/* --runner db-01 --prefix db-01. > jobs/db-01.toml
  systole job check jobs/db-01.toml

Each line becomes a job or is refused with the reason; both are said. Jobs are paused, so that cron and systole do not
both run them: take a line out of the crontab, apply the file, resume the job.

Exit status: 0 every line became a job, 1 some did not.")]
pub struct ImportCrontabArgs {
    /// Crontabs; - is stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Lines have a column with the user; known of /etc/crontab and of files in /etc/cron.d
    #[arg(long)]
    pub system: bool,
    #[command(flatten)]
    pub into: ImportInto,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole import systemd /etc/systemd/system --runner db-01 --prefix db-01. > jobs/db-01.toml
  systole import systemd /usr/lib/systemd/system/fstrim.timer
  systole import systemd units/dump@shop.timer     an instance of the template dump@.timer

A folder stands for all timers in it. The service of a timer is looked for in its folder and in the others that are given, of a
folder of this machine's systemd also in the others of it; drop-ins (NAME.d/*.conf) count.

Exit status: 0 every timer became a job, 1 some did not.")]
pub struct ImportSystemdArgs {
    /// Timers, or folders with units
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    pub into: ImportInto,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl get cronjobs -n shop -o yaml | systole import kubernetes - > jobs/shop.toml
  systole import kubernetes deploy/*.yaml
  helm template chart/ | systole import kubernetes -

Reads CronJob (batch/v1) from YAML and JSON, with many documents and lists; other objects are passed over. No container is
started: image, volumes and secrets are named one by one.

Exit status: 0 every CronJob became a job, 1 some did not.")]
pub struct ImportKubernetesArgs {
    /// Manifests; - is stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub into: ImportInto,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mysqldump xxl_job xxl_job_info xxl_job_group | systole import xxl-job - --zone Asia/Shanghai > jobs/xxl.toml
  systole import xxl-job xxl_job_info.csv xxl_job_group.csv --alarm dba-mail

Scripts (GLUE) become commands. Methods in a JVM (BEAN, GROOVY) are listed and not imported. A CSV has the names of the columns in
its first line.

Exit status: 0 every row became a job, 1 some did not.")]
pub struct ImportXxlJobArgs {
    /// Dumps in SQL, or CSV, of the tables xxl_job_info and xxl_job_group; - is stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Give jobs with an alarm mail an alarm on failure, to this channel of the schedulers
    #[arg(long, value_name = "CHANNEL", value_parser = word)]
    pub alarm: Option<String>,
    #[command(flatten)]
    pub into: ImportInto,
}

fn prefix(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        text => word(text),
    }
}
