//! The command as a process.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// How often something is looked at while waiting for it.
pub(crate) const POLL: Duration = Duration::from_millis(20);
/// How long anything that should happen soon may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a command may run to its end.
const END: Duration = Duration::from_secs(150);

/// A command that runs; killed when dropped.
pub(crate) struct Running {
    child: Child,
    folder: TempDir,
}

/// A command that has ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankway"));
    command
        .args(args)
        .env_clear()
        .envs(variables.iter().copied());
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Runs the command to its end.
pub(crate) async fn run(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let output = timeout(END, command(args, variables).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{args:?} does not end"));
    let output = output.unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name| File::create(folder.path().join(name)).unwrap();
        let mut command = command(args, &[]);
        command.stdout(file("stdout")).stderr(file("stderr"));
        let child = command.spawn().unwrap();
        Self { child, folder }
    }

    /// The first whole line with `part` on standard output.
    pub(crate) async fn says(&mut self, part: &str) -> String {
        self.line("stdout", part).await
    }

    /// The first whole line with `part` on standard error.
    pub(crate) async fn logs(&mut self, part: &str) -> String {
        self.line("stderr", part).await
    }

    async fn line(&mut self, stream: &str, part: &str) -> String {
        let path = self.folder.path().join(stream);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.child.try_wait().unwrap();
            let text = read(&path);
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().find(|it| it.contains(part)) {
                return line.to_owned();
            }
            let text = self.output();
            assert!(ended.is_none(), "it ended without {part:?}:\n{text}");
            assert!(Instant::now() < deadline, "no {part:?} in:\n{text}");
            sleep(POLL).await;
        }
    }

    /// Everything it wrote so far.
    pub(crate) fn output(&self) -> String {
        let read = |name| read(&self.folder.path().join(name));
        read("stdout") + &read("stderr")
    }

    /// `kill -9`.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ctrl-C; the exit code and how long the end took.
    pub(crate) async fn interrupt(mut self) -> (Option<i32>, Duration) {
        self.interrupted().await
    }

    /// Ctrl-C; all that it wrote by its end.
    pub(crate) async fn interrupt_and_read(mut self) -> Ended {
        let (code, _) = self.interrupted().await;
        Ended {
            code,
            stdout: read(&self.folder.path().join("stdout")),
            stderr: read(&self.folder.path().join("stderr")),
        }
    }

    async fn interrupted(&mut self) -> (Option<i32>, Duration) {
        let id = self.child.id().unwrap().to_string();
        let began = Instant::now();
        let sent = Command::new("kill").args(["-INT", &id]).status().await;
        assert!(sent.unwrap().success());
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.unwrap_or_else(|_| panic!("it does not end:\n{}", self.output()));
        (ended.unwrap().code(), began.elapsed())
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

/// Ports that these tests take lie below those that the system hands out by itself.
const FIRST_PORT: u16 = 20_000;
/// Ports of one run of the tests.
const PORTS: u16 = 2_000;
/// Runs that may have ports at a time.
const RUNS: u16 = 6;

/// The first of `count` ports in a row that nobody listens on and no other test is given.
pub(crate) fn free_ports(count: u16) -> u16 {
    static RUN: OnceLock<TcpListener> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let listen = |port| TcpListener::bind(("127.0.0.1", port));
    // A run holds the first of its ports to its end, and with it the others.
    let run = RUN.get_or_init(|| {
        let mut runs = (0..RUNS).map(|it| FIRST_PORT + it * PORTS);
        runs.find_map(|port| listen(port).ok()).unwrap()
    });
    let first = run.local_addr().unwrap().port();
    loop {
        let taken = NEXT.fetch_add(count, Ordering::Relaxed);
        assert!(taken + count <= PORTS, "no free ports");
        let base = first + taken;
        if (base..base + count).all(|port| listen(port).is_ok()) {
            return base;
        }
    }
}
