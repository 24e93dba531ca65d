//! `rankway index`: look into the index of a running `up`.

use serde::{Deserialize, Serialize};

use crate::cli::{AdminArgs, IndexArgs, IndexCommand};
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::index_api::{ComparedRank, HeldAnswer, IndexAnswer, UNKNOWN, compare};
use crate::report::{print_json, print_line};

/// What is read of `/api/v1/workers`.
#[derive(Deserialize)]
struct WorkersAnswer {
    workers: Vec<KnownWorker>,
}

#[derive(Deserialize)]
struct KnownWorker {
    id: String,
    url: String,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary {
    ok: bool,
    ranks: usize,
    /// Ranks that differ, and engines that could not be asked.
    different: usize,
    not_reachable: usize,
}

/// An engine that could not be asked.
#[derive(Serialize)]
struct SilentEngine {
    worker: String,
    not_reachable: String,
    equal: bool,
}

/// What was found of every engine.
#[derive(Default)]
struct Verified {
    ranks: Vec<ComparedRank>,
    silent: Vec<SilentEngine>,
}

/// Runs the command.
pub(crate) fn run(args: IndexArgs) -> Result<(), Failure> {
    let IndexCommand::Verify { admin, json } = args.command;
    let Verified { ranks, silent } = crate::runtime()?.block_on(verify(&admin))?;
    if ranks.is_empty() && silent.is_empty() {
        let why = "no engine is known yet: ask again, or see why by `rankway workers ls`";
        return Err(anyhow::anyhow!(why).into());
    }
    let different = ranks.iter().filter(|it| !it.equal).count();
    let unannounced = ranks.iter().filter(|it| !it.equal && it.state == UNKNOWN);
    let unannounced = unannounced.count();
    if json {
        for rank in &ranks {
            print_json(rank)?;
        }
        for engine in &silent {
            print_json(engine)?;
        }
        print_json(&Summary {
            ok: different == 0 && silent.is_empty(),
            ranks: ranks.len(),
            different: different + silent.len(),
            not_reachable: silent.len(),
        })?;
    } else {
        for rank in &ranks {
            print_line(&describe(rank))?;
        }
        for it in &silent {
            print_line(&format!(
                "{}: not reachable: {}",
                it.worker, it.not_reachable
            ))?;
        }
    }
    let mut wrong = Vec::new();
    let all = ranks.len();
    if unannounced > 0 {
        wrong.push(format!(
            "{unannounced} of {all} ranks hold blocks and have announced none: do their engines publish KV events? /readyz names silent ranks. An index that begins anew is filled by what it asks for again"
        ));
    }
    if unannounced < different {
        let differing = different - unannounced;
        wrong.push(format!(
            "the index differs from {differing} of {all} ranks: it lags behind traffic, so ask again once it is quiet"
        ));
    }
    if !silent.is_empty() {
        wrong.push(format!("engines that are not reachable: {}", silent.len()));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(anyhow::anyhow!(wrong.join("; ")).into()),
    }
}

async fn verify(admin: &AdminArgs) -> anyhow::Result<Verified> {
    let client = JsonClient::of_admin(admin);
    let base = admin.admin_url.trim_end_matches('/');
    let known: WorkersAnswer = client.get(&format!("{base}/api/v1/workers")).await?;
    // Engines have no admin token.
    let engines = JsonClient::of_engines();
    let mut verified = Verified::default();
    for KnownWorker { id, url } in known.workers {
        let held = engines.get(&format!("{url}/debug/kv_blocks")).await;
        let held: HeldAnswer = match held {
            Ok(held) => held,
            Err(why) => {
                verified.silent.push(SilentEngine {
                    worker: id,
                    not_reachable: format!("{why:#}"),
                    equal: false,
                });
                continue;
            }
        };
        let index: IndexAnswer = client.get(&format!("{base}/api/v1/index")).await?;
        verified.ranks.extend(compare(&id, &held, &index));
    }
    Ok(verified)
}

fn describe(rank: &ComparedRank) -> String {
    let verdict = if rank.equal { "equal" } else { "DIFFERENT" };
    let state = match rank.state.as_str() {
        UNKNOWN if rank.engine_blocks == 0 => "no events yet",
        state => state,
    };
    format!(
        "{}/{}: engine {} blocks, index {} blocks ({state}), {verdict}",
        rank.worker, rank.dp_rank, rank.engine_blocks, rank.index_blocks
    )
}
