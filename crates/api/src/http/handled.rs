//! What operators say about findings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An acknowledged finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Acknowledgement {
    /// The name of his token, or his own where a proxy names him.
    pub by: String,
    /// When, seconds since 1970.
    pub unix_s: u64,
    /// What he says.
    pub note: String,
}

/// A request to acknowledge a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeRequest {
    /// For others.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub note: String,
}

/// Findings are not to be sent for a while: those that fit everything that is given, of which there must be something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// A finding's id.
    #[serde(default)]
    pub finding: Option<String>,
    /// Of this host.
    #[serde(default)]
    pub host: Option<String>,
    /// Of this VM.
    #[serde(default)]
    pub vm: Option<String>,
    /// Of this kind, as alerts have it: `steal-outside`.
    #[serde(default)]
    pub kind: Option<String>,
    /// For how long.
    #[schema(minimum = 1, maximum = 527_040)]
    pub minutes: u32,
    /// For others.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub note: String,
}

/// Findings that are not sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceEntry {
    /// 16 hexadecimal digits.
    pub id: String,
    /// That finding only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// Of this host only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Of this VM only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Of this kind only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Who said so.
    pub by: String,
    /// When, seconds since 1970.
    pub unix_s: u64,
    /// Until then.
    pub until_unix_s: u64,
    /// Why.
    pub note: String,
}

/// A message of a finding that a webhook refused. It is not sent until an operator asks for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedMessage {
    /// The finding's id.
    pub finding: String,
    /// `firing` or `resolved`.
    pub event: String,
    /// The receiver's address without its path.
    pub receiver: String,
    /// When, seconds since 1970.
    pub unix_s: u64,
    /// What the receiver answered; at most some 200 bytes.
    pub reason: String,
}

/// Messages that are sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resent {
    /// How many.
    pub messages: u64,
}
