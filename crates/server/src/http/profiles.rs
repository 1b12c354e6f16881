//! Profiles of guests' functions, for other tools.

use std::sync::Arc;

use api::http::{ErrorReply, Role};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Duration, Utc};
use export::pprof::write_functions;
use query::Scope;
use recording::window::HostName;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ApiError, Reader, Reply, Shared, peer};
use crate::Server;
use crate::profiles::from_answer;

/// By then a window is analysed: `seconds` end so long ago.
const DELAY: Duration = Duration::seconds(120);
const MAX_SECONDS: u32 = 366 * 86_400;

/// Which profile.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Of VMs of this host; absent: of all.
    #[param(pattern = "^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$")]
    host: Option<String>,
    /// Of this VM; absent: of all.
    vm: Option<String>,
    /// The first instant, RFC 3339; absent: an hour before `to`.
    #[param(format = DateTime)]
    from: Option<String>,
    /// The instant after the last; absent: now.
    #[param(format = DateTime)]
    to: Option<String>,
    /// In place of both: so many seconds, which ended two minutes ago. Programs that fetch profiles regularly say it.
    #[param(maximum = 31_622_400)]
    seconds: Option<u32>,
}

impl Which {
    fn range(&self, now: DateTime<Utc>) -> Reply<(DateTime<Utc>, DateTime<Utc>)> {
        let bad = |text: &str| Err(ApiError::new(StatusCode::BAD_REQUEST, text));
        if let Some(seconds) = self.seconds {
            if self.from.is_some() || self.to.is_some() {
                return bad("give either seconds, or from and to");
            }
            if MAX_SECONDS < seconds {
                return bad(&format!("seconds are at most {MAX_SECONDS}"));
            }
            let to = now - DELAY;
            return Ok((to - Duration::seconds(seconds.into()), to));
        }
        let to = self.to.as_deref().map_or(Ok(now), query::parse_instant)?;
        let hour = |_| to - Duration::hours(1);
        let from = match self.from.as_deref() {
            None => hour(()),
            Some(text) => query::parse_instant(text)?,
        };
        if to <= from {
            return bad("from must be before to");
        }
        Ok((from, to))
    }
}

/// A reader; `go tool pprof` can only say its token as a password, in the address.
pub(super) struct ProfileReader(String);

impl FromRequestParts<Arc<Server>> for ProfileReader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Reply<Self> {
        let Some(token) = password(&parts.headers) else {
            return Reader::from_request_parts(parts, server).await.map(|Reader(name)| Self(name));
        };
        let roles = [Role::Read, Role::Admin];
        Ok(Self(server.require(&parts.headers, Ok(&token), peer(parts), &roles).await?))
    }
}

/// The password of a request with a user and a password.
fn password(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let pair = BASE64_STANDARD.decode(value.strip_prefix("Basic ")?).ok()?;
    let (_, password) = std::str::from_utf8(&pair).ok()?.split_once(':')?;
    Some(password.to_owned())
}

/// What guests' functions took, as a gzipped pprof profile: samples, apparent time and corrected time of each function of
/// each process.
#[utoipa::path(get, path = "/v1/pprof", params(Which), responses(
    (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
    (status = 400, body = ErrorReply), (status = 401, body = ErrorReply),
    (status = 403, body = ErrorReply),
    (status = 422, body = ErrorReply, description = "it takes more than queries may"),
    (status = 503, body = ErrorReply, description = "come again after Retry-After seconds"),
))]
pub(super) async fn pprof(
    State(server): Shared,
    ProfileReader(asker): ProfileReader,
    which: Result<Query<Which>, QueryRejection>,
) -> Reply<Response> {
    let Query(which) = which?;
    let (from, to) = which.range(Utc::now())?;
    let host = which.host.as_deref().map(str::parse::<HostName>).transpose();
    let host = host.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let host = host.map(|host| host.to_string());
    let vm = which.vm.as_deref().map(|vm| format!("AND vm = {} ", quoted(vm))).unwrap_or_default();
    let of_host = host.as_deref().map(|host| format!("AND host = {} ", quoted(host)));
    let instant = |time: DateTime<Utc>| quoted(&time.to_rfc3339());
    let sql = crate::profiles::query(&format!(
        "slice >= arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))') \
         AND slice < arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))') {vm}{}",
        instant(from),
        instant(to),
        of_host.unwrap_or_default(),
    ));
    let scope = Scope { from: Some(from), to: Some(to), host };
    let answer = server.engine.sql(&asker, &sql, &scope).await?.parse()?;
    let ns = |time: DateTime<Utc>| u64::try_from(time.timestamp_micros()).unwrap_or(0) * 1000;
    let functions = from_answer(&answer, ns(from), ns(to));
    let failed =
        |error: std::io::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let mut bytes = Vec::new();
    write_functions(&functions, &mut bytes).map_err(failed)?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// A text in SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_password_is_what_follows_the_user() {
        let of = |value: &str| {
            let value = value.parse().unwrap();
            password(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
        };
        // me:a:b, me, : and bytes that are no text.
        assert_eq!(of("Basic bWU6YTpi").as_deref(), Some("a:b"));
        assert_eq!(of("Basic Og==").as_deref(), Some(""));
        for bad in ["Basic bWU=", "Basic !", "Basic gIA6gA==", "Bearer bWU6YTpi", "bWU6YTpi"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn texts_end_where_they_end() {
        assert_eq!(quoted("a' OR '1'='1"), "'a'' OR ''1''=''1'");
        assert_eq!(quoted("\\'--"), "'\\''--'");
    }
}
