package org.apache.iceberg.encryption;

import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;

/** The credentials that the test servers take, for Iceberg Java's property client.credentials-provider. */
public class TestingCredentials implements AwsCredentialsProvider {
  public static TestingCredentials create() {
    return new TestingCredentials();
  }

  @Override
  public AwsCredentials resolveCredentials() {
    return AwsBasicCredentials.create("testing", "testing");
  }
}
