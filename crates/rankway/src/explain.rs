//! What a running router says of its decisions: why one request went where it went, where the cacheable tokens of all of
//! them went, and what the policy in its shadow would have done.

use serde_json::Value;

use crate::cli::{AdminArgs, ExplainArgs, ShadowArgs, WaterfallArgs};
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::report::{print_json, print_line};

/// Runs `rankway explain`.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let why_not = args.why_not.as_deref();
    // The only character of a place that a query cannot have.
    let why_not = why_not.map(|it| format!("?why_not={}", it.replace('#', "%23")));
    let path = format!("decisions/{}{}", args.id, why_not.unwrap_or_default());
    show(&args.admin, &path, args.json)
}

/// Runs `rankway waterfall`.
pub(crate) fn waterfall(args: &WaterfallArgs) -> Result<(), Failure> {
    let path = match args.since {
        Some(since) => format!("waterfall?since={}", since.as_secs()),
        None => "waterfall".to_owned(),
    };
    show(&args.admin, &path, args.json)
}

/// Runs `rankway shadow`.
pub(crate) fn shadow(args: &ShadowArgs) -> Result<(), Failure> {
    show(&args.admin, "shadow", args.json)
}

/// Prints what a path of the admin API says, in words or as JSON.
fn show(admin: &AdminArgs, path: &str, json: bool) -> Result<(), Failure> {
    let base = admin.admin_url.trim_end_matches('/');
    let url = format!("{base}/api/v1/{path}");
    let client = JsonClient::of_admin(admin);
    let runtime = crate::runtime()?;
    if json {
        let answer: Value = runtime.block_on(client.get(&url))?;
        print_json(&answer)?;
    } else {
        let text = runtime.block_on(client.get_text(&url))?;
        print_line(text.trim_end())?;
    }
    Ok(())
}
