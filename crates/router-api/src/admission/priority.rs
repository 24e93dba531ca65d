//! How urgent a request says it is.

use http::HeaderMap;
use prometheus::IntCounter;
use routing::admission::Priority;

use crate::error::{ApiError, excerpt};
use crate::openai::Fields;

/// The client's word for it, from -10 to 10.
const HEADER: &str = "x-rankway-priority";
/// Dynamo's, any whole number.
const FOREIGN_HEADER: &str = "x-dynamo-request-priority";

/// What the request asks for: in our header, which has to make sense; else in Dynamo's words, which count as the nearest
/// priority there is, and are skipped and counted where they are no number.
pub(crate) fn asked(
    headers: &HeaderMap,
    fields: &Fields<'_>,
    skipped: &IntCounter,
) -> Result<Priority, ApiError> {
    let number = |name: &str| {
        let value = headers.get(name)?.to_str().ok();
        Some(value.and_then(|it| it.trim().parse::<i64>().ok()))
    };
    if let Some(number) = number(HEADER) {
        return number.and_then(Priority::new).ok_or_else(|| {
            let value = headers.get(HEADER).map(|it| it.as_bytes());
            let value = String::from_utf8_lossy(value.unwrap_or_default());
            ApiError::Invalid {
                message: format!(
                    "{HEADER} is a whole number from {} to {}, not {:?}",
                    Priority::LOWEST.get(),
                    Priority::HIGHEST.get(),
                    excerpt(&value)
                ),
                param: Some(HEADER),
            }
        });
    }
    let foreign = [number(FOREIGN_HEADER), fields.hinted_priority()];
    for asked in foreign.into_iter().flatten() {
        match asked {
            Some(number) => return Ok(Priority::nearest(number)),
            None => skipped.inc(),
        }
    }
    Ok(Priority::NORMAL)
}
