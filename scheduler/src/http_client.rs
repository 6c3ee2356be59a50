//! Clients for calls to the outside: callbacks, alarms, signs of life.

use std::sync::Once;

/// As `make` says. On a machine that trusts no certificate authority, such as one where nothing but this program is installed, the
/// client trusts nobody: calls over https fail by that, and the rest goes on.
pub fn build(make: impl Fn() -> reqwest::ClientBuilder) -> Result<reqwest::Client, reqwest::Error> {
    static TOLD: Once = Once::new();
    make().build().or_else(|error| {
        let client = make().tls_certs_only([]).build()?;
        TOLD.call_once(|| {
            tracing::warn!(
                %error,
                "no certificate authority is trusted on this machine: callbacks and alarms over https will fail. Install its \
                 ca-certificates and start again"
            );
        });
        Ok(client)
    })
}
