/*
 * Iceberg Java at the other end of a pipe: one JSON command a line in, one JSON answer a line out.
 * It lives in this package because the stream and key classes of Iceberg Java are package-private.
 */
package org.apache.iceberg.encryption;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.ManifestListFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.util.ByteBuffers;

public class Peer {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final HexFormat HEX = HexFormat.of();

  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // the answers' pipe is for answers only
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        answer(JSON.readTree(line), answer);
      } catch (Throwable e) {
        answer.removeAll();
        answer.put("error", String.valueOf(e));
      }
      out.println(JSON.writeValueAsString(answer));
      out.flush();
    }
  }

  private static void answer(JsonNode command, ObjectNode answer) throws Exception {
    switch (command.get("do").asText()) {
      case "write-stream" -> writeStream(command, answer);
      case "read-stream" -> readStream(command, answer);
      case "encode-metadata" -> answer.put("metadata", hex(metadata(command).buffer()));
      case "decode-metadata" -> decodeMetadata(command, answer);
      case "seal-key" -> sealKey(command, answer);
      case "open-key" -> openKey(command, answer);
      case "kms" -> kms(command, answer);
      case "bench" -> StreamBenchmark.run(command, answer);
      default -> throw new IllegalArgumentException("Unknown command: " + command);
    }
  }

  /** Encrypts a file in uneven chunks, as a writer of Avro would. */
  private static void writeStream(JsonNode command, ObjectNode answer) throws Exception {
    StandardKeyMetadata metadata = metadata(command);
    byte[] plain = java.nio.file.Files.readAllBytes(Path.of(command.get("plain").asText()));
    File file = new File(command.get("encrypted").asText());
    AesGcmOutputFile output =
        new AesGcmOutputFile(
            org.apache.iceberg.Files.localOutput(file), key(metadata), aadPrefix(metadata));
    try (PositionOutputStream stream = output.createOrOverwrite()) {
      int chunk = 1;
      for (int at = 0; at < plain.length; at += chunk, chunk = Math.min(chunk * 3, 700_001)) {
        stream.write(plain, at, Math.min(chunk, plain.length - at));
      }
    }
    answer.put("metadata", hex(metadata.copyWithLength(file.length()).buffer()));
  }

  private static void readStream(JsonNode command, ObjectNode answer) throws Exception {
    StandardKeyMetadata metadata = StandardKeyMetadata.parse(ByteBuffer.wrap(bytes(command, "metadata")));
    AesGcmInputFile input =
        new AesGcmInputFile(
            org.apache.iceberg.Files.localInput(command.get("encrypted").asText()),
            key(metadata),
            aadPrefix(metadata),
            metadata.fileLength());
    answer.put("length", input.getLength());
    try (SeekableInputStream stream = input.newStream();
        OutputStream out = java.nio.file.Files.newOutputStream(Path.of(command.get("plain").asText()))) {
      stream.transferTo(out);
    }
    ArrayNode parts = answer.putArray("parts");
    try (SeekableInputStream stream = input.newStream()) {
      for (JsonNode range : command.get("ranges")) {
        stream.seek(range.get(0).asLong());
        parts.add(HEX.formatHex(stream.readNBytes(range.get(1).asInt())));
      }
    }
  }

  private static void decodeMetadata(JsonNode command, ObjectNode answer) {
    StandardKeyMetadata metadata = StandardKeyMetadata.parse(ByteBuffer.wrap(bytes(command, "metadata")));
    answer.put("key", hex(metadata.encryptionKey()));
    answer.put("aadPrefix", metadata.aadPrefix() == null ? null : hex(metadata.aadPrefix()));
    answer.put("fileLength", metadata.fileLength());
  }

  /** Adds a manifest-list key to a table's keys, as a commit does. */
  private static void sealKey(JsonNode command, ObjectNode answer) {
    StandardEncryptionManager manager = manager(command);
    StandardKeyMetadata metadata = StandardKeyMetadata.parse(ByteBuffer.wrap(bytes(command, "metadata")));
    answer.put("id", manager.addManifestListKeyMetadata(metadata));
    ArrayNode keys = answer.putArray("keys");
    for (EncryptedKey key : EncryptionUtil.encryptionKeys(manager).values()) {
      ObjectNode entry = keys.addObject();
      entry.put("key-id", key.keyId());
      entry.put(
          "encrypted-key-metadata",
          Base64.getEncoder().encodeToString(ByteBuffers.toByteArray(key.encryptedKeyMetadata())));
      entry.put("encrypted-by-id", key.encryptedById());
      if (key.properties() != null && !key.properties().isEmpty()) {
        entry.set("properties", JSON.valueToTree(key.properties()));
      }
    }
  }

  /** Finds the key of a snapshot's manifest list, as a scan does. */
  private static void openKey(JsonNode command, ObjectNode answer) {
    ManifestListFile list =
        new ManifestListFile() {
          @Override
          public String location() {
            return "list.avro";
          }

          @Override
          public String encryptionKeyID() {
            return command.get("id").asText();
          }

          @Override
          public ByteBuffer decryptKeyMetadata(EncryptionManager manager) {
            return EncryptionUtil.decryptManifestListKeyMetadata(this, manager);
          }
        };
    answer.put("metadata", hex(list.decryptKeyMetadata(manager(command))));
  }

  /** Calls a KMS client of Iceberg Java's, made from catalog properties. */
  private static void kms(JsonNode command, ObjectNode answer) throws Exception {
    try (KeyManagementClient client = EncryptionUtil.createKmsClient(properties(command))) {
      ByteBuffer given = ByteBuffer.wrap(bytes(command, "bytes"));
      String keyId = command.get("keyId").asText();
      ByteBuffer got =
          command.get("wrap").asBoolean() ? client.wrapKey(given, keyId) : client.unwrapKey(given, keyId);
      answer.put("bytes", hex(got));
    }
  }

  private static StandardEncryptionManager manager(JsonNode command) {
    List<EncryptedKey> keys = new ArrayList<>();
    for (JsonNode entry : command.get("keys")) {
      keys.add(
          new BaseEncryptedKey(
              entry.get("key-id").asText(),
              ByteBuffer.wrap(Base64.getDecoder().decode(entry.get("encrypted-key-metadata").asText())),
              entry.get("encrypted-by-id").asText(),
              properties(entry)));
    }
    UnitestKMS kms = new UnitestKMS();
    kms.initialize(Map.of());
    return new StandardEncryptionManager(
        keys, command.get("masterKeyId").asText(), command.get("dataKeyLength").asInt(), kms);
  }

  private static Map<String, String> properties(JsonNode node) {
    Map<String, String> properties = new HashMap<>();
    if (node.has("properties")) {
      node.get("properties").properties().forEach(p -> properties.put(p.getKey(), p.getValue().asText()));
    }
    return properties;
  }

  private static StandardKeyMetadata metadata(JsonNode command) {
    JsonNode length = command.get("fileLength");
    return new StandardKeyMetadata(
        bytes(command, "key"),
        bytes(command, "aadPrefix"),
        length == null || length.isNull() ? null : length.asLong());
  }

  private static byte[] key(StandardKeyMetadata metadata) {
    return ByteBuffers.toByteArray(metadata.encryptionKey());
  }

  private static byte[] aadPrefix(StandardKeyMetadata metadata) {
    return ByteBuffers.toByteArray(metadata.aadPrefix());
  }

  static byte[] bytes(JsonNode node, String name) {
    return HEX.parseHex(node.get(name).asText());
  }

  private static String hex(ByteBuffer buffer) {
    return HEX.formatHex(ByteBuffers.toByteArray(buffer));
  }
}
