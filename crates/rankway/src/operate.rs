//! `rankway bindings`, `workers`, `targets`, `move` and `drain`: looking at a running `up`, and telling it what to do.

use std::fs;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::{
    AdminArgs, BindingsArgs, BindingsCommand, DrainArgs, ExportArgs, FilterArgs, LookArgs,
    LookCommand, MoveArgs,
};
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::moment::moment;
use crate::report::{print_json, print_line};

/// Bindings asked for at once.
const PAGE: usize = 1_000;
/// Bindings imported at once: the admin API takes bodies of 2 MB, and a binding has some 500 bytes.
const IMPORTED_AT_ONCE: usize = 1_000;

/// Whose conversations are where no tenants are set; unless said otherwise it is not shown.
const DEFAULT_TENANT: &str = "default";

/// The admin API that is spoken to.
struct Admin {
    client: JsonClient,
    base: String,
}

/// Some of the bindings, each as the API shows it.
#[derive(Deserialize)]
struct Page {
    bindings: Vec<Value>,
    next: Option<String>,
}

/// What became of an import.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Imported {
    imported: u64,
    left_out: u64,
}

/// `rankway bindings`.
pub(crate) fn bindings(args: BindingsArgs) -> Result<(), Failure> {
    match args.command {
        BindingsCommand::Ls {
            filter,
            limit,
            admin,
            json,
        } => list(&filter, limit, &admin, json),
        BindingsCommand::Export(ExportArgs { filter, admin }) => {
            let admin = Admin::of(&admin);
            let print = |binding: &Value| print_json(binding);
            crate::runtime()?.block_on(admin.pages(&filter, usize::MAX, print))?;
            Ok(())
        }
        BindingsCommand::Import { file, admin, json } => {
            let text = fs::read_to_string(&file);
            let text = text.with_context(|| format!("read {}", file.display()))?;
            let bindings = text.lines().enumerate().map(|(number, line)| {
                let binding = serde_json::from_str::<Value>(line);
                binding.with_context(|| format!("read line {} of {}", number + 1, file.display()))
            });
            let bindings: Vec<Value> = bindings.collect::<Result<_, _>>()?;
            let imported = crate::runtime()?.block_on(Admin::of(&admin).import(&bindings))?;
            match json {
                true => print_json(&imported)?,
                false => print_line(&format!(
                    "imported {}, left out {} that are bound already or have been idle for too long",
                    imported.imported, imported.left_out
                ))?,
            }
            Ok(())
        }
    }
}

fn list(filter: &FilterArgs, limit: usize, admin: &AdminArgs, json: bool) -> Result<(), Failure> {
    let admin = Admin::of(admin);
    let fields = [
        "conversation",
        "tenant",
        "model",
        "worker",
        "dp_rank",
        "state",
        "owner",
        "turns",
        "held_tokens",
        "since",
        "reason",
        "actor",
    ];
    let print = |binding: &Value| {
        if json {
            return print_json(binding);
        }
        let mut shown = binding.clone();
        if shown["tenant"] == DEFAULT_TENANT {
            shown["tenant"] = Value::Null;
        }
        if let Some(since) = binding["since_seconds"].as_f64() {
            shown["since"] = moment(since).into();
        }
        print_line(&line(&shown, &fields))
    };
    let listed = crate::runtime()?.block_on(admin.pages(filter, limit, print))?;
    let Listed { count, is_whole } = listed;
    match json {
        true => print_json(&json!({"listed": count, "more": !is_whole}))?,
        false if is_whole => print_line(&format!("{count} bindings"))?,
        false => print_line(&format!("{count} bindings; there are more: raise --limit"))?,
    }
    Ok(())
}

/// `rankway workers`.
pub(crate) fn workers(args: LookArgs) -> Result<(), Failure> {
    let fields = [
        "id",
        "state",
        "engine",
        "version",
        "model",
        "start_rank",
        "dp_size",
        "first_rank",
        "url",
        "why",
    ];
    look(args, "workers", &fields, why)
}

/// `rankway targets`.
pub(crate) fn targets(args: LookArgs) -> Result<(), Failure> {
    look(
        args,
        "targets",
        &["target", "state", "model", "pending_tokens", "active"],
        |_| None,
    )
}

/// Why a worker is in its state, where somebody has decided that.
fn why(worker: &Value) -> Option<String> {
    let drained = |drain: &Value| {
        let what = match &drain["dp_rank"] {
            Value::Null => "drained".to_owned(),
            rank => format!("rank {rank} drained"),
        };
        let since = moment(drain["since_seconds"].as_f64()?);
        let actor = drain["actor"].as_str()?;
        let stays = match drain["moves"].as_bool()? {
            true => "its conversations move",
            false => "its conversations stay until they are idle",
        };
        let empty = drain["empty_since_seconds"].as_f64();
        let left = empty.map_or(stays.to_owned(), |it| format!("empty since {}", moment(it)));
        Some(format!("{what} since {since} by {actor}, {left}"))
    };
    let refused = worker["refused"]
        .as_str()
        .map(|it| format!("refused: {it}"));
    let drains = worker["drains"].as_array().into_iter().flatten();
    let all: Vec<String> = refused
        .into_iter()
        .chain(drains.filter_map(drained))
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Lists `what`, with `why` beside what each says of itself.
fn look(
    args: LookArgs,
    what: &str,
    fields: &[&str],
    why: impl Fn(&Value) -> Option<String>,
) -> Result<(), Failure> {
    let LookCommand::Ls { admin, json } = args.command;
    let admin = Admin::of(&admin);
    let url = admin.url(what);
    let answer: Value = crate::runtime()?.block_on(admin.client.get(&url))?;
    let mut all = answer[what].as_array().cloned().unwrap_or_default();
    for one in &mut all {
        if json {
            print_json(one)?;
            continue;
        }
        if let Some(why) = why(one) {
            one["why"] = why.into();
        }
        print_line(&line(one, fields))?;
    }
    match json {
        true => print_json(&json!({ "listed": all.len() }))?,
        false => print_line(&format!("{} {what}", all.len()))?,
    }
    Ok(())
}

/// `rankway move`.
pub(crate) fn reassign(args: MoveArgs) -> Result<(), Failure> {
    let admin = Admin::of(&args.admin);
    let of = [("tenant", &args.tenant), ("model", &args.model)];
    let of = of
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?))));
    let of = of.collect::<Vec<_>>().join("&");
    let conversation = encoded(&args.conversation);
    let url = admin.url(&format!("bindings/{conversation}/move?{of}"));
    let body = json!({"to": args.to});
    let moved: Value = crate::runtime()?.block_on(admin.client.post(&url, &body))?;
    match args.json {
        true => print_json(&moved)?,
        false => print_line(&format!("{} is at {}", args.conversation, args.to))?,
    }
    Ok(())
}

/// `rankway drain`.
pub(crate) fn drain(args: DrainArgs) -> Result<(), Failure> {
    let admin = Admin::of(&args.admin);
    let (worker, rank) = &args.place;
    let verb = match (args.undo, args.moves) {
        (true, _) => "undrain",
        (false, true) => "drain?move=true",
        (false, false) => "drain",
    };
    let (place, path) = match rank {
        Some(rank) => (
            format!("{worker}/{rank}"),
            format!("workers/{worker}/ranks/{rank}/{verb}"),
        ),
        None => (worker.to_string(), format!("workers/{worker}/{verb}")),
    };
    let url = admin.url(&path);
    let nothing = json!({});
    let answer: Value = crate::runtime()?.block_on(admin.client.post(&url, &nothing))?;
    let told = match (args.undo, args.moves) {
        (true, _) => format!("{place} takes new conversations again"),
        (false, true) => {
            format!(
                "{place} takes no new conversation; those it has go elsewhere at their next turn"
            )
        }
        (false, false) => {
            format!("{place} takes no new conversation; those it has stay until they are idle")
        }
    };
    match args.json {
        true => print_json(&answer)?,
        false => print_line(&told)?,
    }
    Ok(())
}

/// How much was listed.
struct Listed {
    count: usize,
    is_whole: bool,
}

impl Admin {
    fn of(args: &AdminArgs) -> Self {
        Self {
            client: JsonClient::of_admin(args),
            base: args.admin_url.trim_end_matches('/').to_owned(),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1/{path}", self.base)
    }

    /// Gives each binding that fits to `take`, up to `limit`.
    async fn pages(
        &self,
        filter: &FilterArgs,
        limit: usize,
        take: impl Fn(&Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<Listed> {
        let wanted = [
            ("worker", filter.worker.as_ref().map(ToString::to_string)),
            ("dp_rank", filter.rank.map(|it| it.to_string())),
            ("tenant", filter.tenant.clone()),
            ("conversation", filter.conversation.clone()),
            ("state", filter.state.clone()),
        ];
        let wanted = wanted.into_iter();
        let wanted: String = wanted
            .filter_map(|(name, value)| Some(format!("&{name}={}", encoded(&value?))))
            .collect();
        let (mut count, mut after) = (0, String::new());
        loop {
            let rest = PAGE.min(limit - count);
            let url = self.url(&format!("bindings?limit={rest}{wanted}{after}"));
            let page: Page = self.client.get(&url).await?;
            page.bindings.iter().try_for_each(&take)?;
            count += page.bindings.len();
            match page.next {
                Some(next) if count < limit => after = format!("&after={next}"),
                next => {
                    let is_whole = next.is_none();
                    return Ok(Listed { count, is_whole });
                }
            }
        }
    }

    async fn import(&self, bindings: &[Value]) -> anyhow::Result<Imported> {
        let mut all = Imported::default();
        for bindings in bindings.chunks(IMPORTED_AT_ONCE) {
            let body = json!({ "bindings": bindings });
            let some: Imported = self.client.post(&self.url("bindings"), &body).await?;
            all.imported += some.imported;
            all.left_out += some.left_out;
        }
        Ok(all)
    }
}

/// The fields that are set, as `name=value`; the first by its value alone.
fn line(object: &Value, fields: &[&str]) -> String {
    let text = |field: &str| match &object[field] {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let shown = fields.iter().enumerate().filter_map(|(number, field)| {
        let text = text(field)?;
        Some(match number {
            0 => text,
            _ => format!("{field}={text}"),
        })
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// As a part of a path or query: everything but letters, digits and `-._~` percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_url_could_misread_is_encoded() {
        assert_eq!(encoded("a-B.9_~"), "a-B.9_~");
        assert_eq!(encoded("a/b c?&%é"), "a%2Fb%20c%3F%26%25%C3%A9");
    }

    #[test]
    fn a_line_has_what_is_set() {
        let object =
            json!({"id": "w1", "state": "ready", "version": "", "ranks": [], "n": 3, "x": null});
        let fields = ["id", "version", "state", "ranks", "n", "x"];
        assert_eq!(line(&object, &fields), "w1 state=ready n=3");
    }
}
