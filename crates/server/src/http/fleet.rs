//! What the fleet's hosts and VMs lost, and what its agents collected, without a query.

use api::http::{ErrorReply, FleetAnswer, HealthAnswer};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use chrono::Utc;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Reader, Reply, Shared};

/// Which time.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Range {
    /// The first instant, RFC 3339.
    #[param(format = DateTime)]
    from: String,
    /// The instant after the last.
    #[param(format = DateTime)]
    to: String,
    /// Into how many slots it is divided at most.
    #[param(maximum = 65_535)]
    slots: u16,
}

/// Says what hosts and VMs lost in the last eight days: of the last three hours by the minute, before by ten minutes.
#[utoipa::path(get, path = "/v1/fleet", params(Range), responses(
    (status = 200, body = FleetAnswer), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn ask_fleet(
    State(server): Shared,
    _: Reader,
    range: Result<Query<Range>, QueryRejection>,
) -> Reply<Json<FleetAnswer>> {
    let Query(Range { from, to, slots }) = range?;
    let (from, to) = (query::parse_instant(&from)?, query::parse_instant(&to)?);
    server.recent_sums().await;
    Ok(Json(server.engine.fleet(from, to, slots.into(), Utc::now())))
}

/// Which time of agents.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Span {
    /// The first instant, RFC 3339.
    #[param(format = DateTime)]
    from: String,
    /// The instant after the last.
    #[param(format = DateTime)]
    to: String,
}

/// Says what agents collected and noted in the last eight days: of the last three hours by the minute, before by ten minutes.
#[utoipa::path(get, path = "/v1/health", params(Span), responses(
    (status = 200, body = HealthAnswer), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn ask_health(
    State(server): Shared,
    _: Reader,
    span: Result<Query<Span>, QueryRejection>,
) -> Reply<Json<HealthAnswer>> {
    let Query(Span { from, to }) = span?;
    let (from, to) = (query::parse_instant(&from)?, query::parse_instant(&to)?);
    server.recent_sums().await;
    Ok(Json(server.engine.health(from, to, Utc::now())))
}
