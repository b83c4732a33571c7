package org.apache.iceberg.encryption;

import com.azure.core.credential.AccessToken;
import com.azure.core.credential.TokenCredential;
import java.time.OffsetDateTime;
import java.util.Map;
import org.apache.iceberg.azure.AdlsTokenCredentialProvider;
import reactor.core.publisher.Mono;

/** The token that the test server takes, for Iceberg Java's property adls.token-credential-provider. */
public class TestingTokens implements AdlsTokenCredentialProvider {
  private String token;

  @Override
  public void initialize(Map<String, String> properties) {
    token = properties.get("token");
  }

  @Override
  public TokenCredential credential() {
    return request -> Mono.just(new AccessToken(token, OffsetDateTime.now().plusHours(1)));
  }
}
