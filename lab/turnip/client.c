// A Vulkan program without graphics: dispatches, large and indirect ones, push constants, fills,
// copies, updates, events, semaphores, timeline semaphores from several threads, images, timestamps,
// each with its results checked on the host.
// Prints "wrong ..." for each result that is not right, and "done" at its end.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define TRY(call) do { VkResult r_ = (call); if (r_) { fprintf(stderr, "%s = %d\n", #call, r_); exit(1); } } while (0)
enum { COUNT = 256, SIZE = 4 * COUNT };

static VkDevice device;
static VkQueue queue;
static VkCommandPool pool;
static VkFence fence;
static VkBuffer buffers[3];
static void *memory[3];
static VkPipeline pipeline;
static VkPipelineLayout layout;
static VkDescriptorSet set;
static float *a, *b, *c;

static VkCommandBuffer begin(void) {
  VkCommandBufferAllocateInfo info = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandPool = pool, .commandBufferCount = 1};
  VkCommandBuffer commands;
  TRY(vkAllocateCommandBuffers(device, &info, &commands));
  VkCommandBufferBeginInfo start = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  TRY(vkBeginCommandBuffer(commands, &start));
  return commands;
}

static void end(VkCommandBuffer commands, VkSemaphore wait, VkSemaphore signal) {
  VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                         .pCommandBuffers = &commands, .pWaitDstStageMask = &stage,
                         .waitSemaphoreCount = wait != 0, .pWaitSemaphores = &wait,
                         .signalSemaphoreCount = signal != 0, .pSignalSemaphores = &signal};
  TRY(vkEndCommandBuffer(commands));
  TRY(vkQueueSubmit(queue, 1, &submit, fence));
  TRY(vkWaitForFences(device, 1, &fence, 1, UINT64_MAX));
  TRY(vkResetFences(device, 1, &fence));
}

static void bind(VkCommandBuffer commands, unsigned n, float k) {
  struct { unsigned n; float k; } values = {n, k};
  vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, 0);
  vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 8, &values);
}

static void reset(void) {
  for (int i = 0; i < COUNT; i++) a[i] = i, b[i] = 1000 + i, c[i] = -1;
}

static void expect_scaled(const char *what, int n, float k) {
  for (int i = 0; i < COUNT; i++) {
    float want = i < n ? a[i] * k + b[i] : -1;
    if (c[i] != want) {
      printf("wrong: %s: c[%d] = %g, expected %g\n", what, i, c[i], want);
      return;
    }
  }
}

static void expect_word(const char *what, void *place, int index, unsigned want) {
  unsigned found = ((unsigned *)place)[index];
  if (found != want) printf("wrong: %s: word %d = %#x, expected %#x\n", what, index, found, want);
}

static VkPipeline compile(const char *path, VkPipelineLayout of) {
  static unsigned code[1 << 14];
  FILE *file = fopen(path, "rb");
  if (!file) exit(2);
  VkShaderModuleCreateInfo info = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                   .codeSize = fread(code, 1, sizeof code, file), .pCode = code};
  fclose(file);
  VkShaderModule module;
  TRY(vkCreateShaderModule(device, &info, 0, &module));
  VkComputePipelineCreateInfo compute = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main"},
      .layout = of};
  VkPipeline made;
  TRY(vkCreateComputePipelines(device, 0, 1, &compute, 0, &made));
  return made;
}

static VkDescriptorSet allocate_set(VkDescriptorSetLayout of) {
  VkDescriptorPoolSize sizes[3] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 3},
                                   {VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, 1},
                                   {VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, 1}};
  VkDescriptorPoolCreateInfo pools = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1,
                                      .poolSizeCount = 3, .pPoolSizes = sizes};
  VkDescriptorPool descriptors;
  TRY(vkCreateDescriptorPool(device, &pools, 0, &descriptors));
  VkDescriptorSetAllocateInfo wanted = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
      .descriptorPool = descriptors, .descriptorSetCount = 1, .pSetLayouts = &of};
  VkDescriptorSet made;
  TRY(vkAllocateDescriptorSets(device, &wanted, &made));
  return made;
}

static void start(const char *shader) {
  VkApplicationInfo app = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
  VkInstanceCreateInfo make = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
  VkInstance instance;
  TRY(vkCreateInstance(&make, 0, &instance));
  unsigned count = 1;
  VkPhysicalDevice gpu;
  TRY(vkEnumeratePhysicalDevices(instance, &count, &gpu));
  float priority = 1;
  VkDeviceQueueCreateInfo queues = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                    .pQueuePriorities = &priority};
  VkPhysicalDeviceTimelineSemaphoreFeatures features = {
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, .timelineSemaphore = 1};
  VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features,
                             .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues};
  TRY(vkCreateDevice(gpu, &info, 0, &device));
  vkGetDeviceQueue(device, 0, 0, &queue);
  VkDescriptorSetLayoutBinding places[3];
  for (int i = 0; i < 3; i++) {
    VkBufferCreateInfo buffer = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = SIZE, .usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
        VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT};
    TRY(vkCreateBuffer(device, &buffer, 0, &buffers[i]));
    VkMemoryAllocateInfo wanted = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = SIZE};
    VkDeviceMemory made;
    TRY(vkAllocateMemory(device, &wanted, 0, &made));
    TRY(vkBindBufferMemory(device, buffers[i], made, 0));
    TRY(vkMapMemory(device, made, 0, VK_WHOLE_SIZE, 0, &memory[i]));
    places[i] = (VkDescriptorSetLayoutBinding){i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1,
                                               VK_SHADER_STAGE_COMPUTE_BIT};
  }
  a = memory[0], b = memory[1], c = memory[2];
  VkDescriptorSetLayoutCreateInfo sets = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                          .bindingCount = 3, .pBindings = places};
  VkDescriptorSetLayout set_layout;
  TRY(vkCreateDescriptorSetLayout(device, &sets, 0, &set_layout));
  VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 8};
  VkPipelineLayoutCreateInfo layouts = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
      .setLayoutCount = 1, .pSetLayouts = &set_layout, .pushConstantRangeCount = 1,
      .pPushConstantRanges = &range};
  TRY(vkCreatePipelineLayout(device, &layouts, 0, &layout));
  pipeline = compile(shader, layout);
  set = allocate_set(set_layout);
  for (int i = 0; i < 3; i++) {
    VkDescriptorBufferInfo place = {buffers[i], 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = set,
        .dstBinding = i, .descriptorCount = 1, .pBufferInfo = &place,
        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};
    vkUpdateDescriptorSets(device, 1, &write, 0, 0);
  }
  VkCommandPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  TRY(vkCreateCommandPool(device, &pool_info, 0, &pool));
  VkFenceCreateInfo fence_info = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  TRY(vkCreateFence(device, &fence_info, 0, &fence));
}

static VkSemaphore timeline;

static void *signal_one(void *unused) {
  VkSemaphoreSignalInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = timeline,
                                .value = 1};
  TRY(vkSignalSemaphore(device, &info));
  return unused;
}

static void *wait_two(void *unused) {
  uint64_t value = 2;
  VkSemaphoreWaitInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1,
                              .pSemaphores = &timeline, .pValues = &value};
  TRY(vkWaitSemaphores(device, &info, UINT64_MAX));
  return unused;
}

// Work that waits for a value which another thread gives later; three threads wait for its end.
static void timelines(void) {
  VkSemaphoreTypeCreateInfo kind = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                    .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
  VkSemaphoreCreateInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &kind};
  TRY(vkCreateSemaphore(device, &info, 0, &timeline));
  reset();
  VkCommandBuffer commands = begin();
  bind(commands, 256, 7), vkCmdDispatch(commands, 4, 1, 1);
  TRY(vkEndCommandBuffer(commands));
  uint64_t before = 1, after = 2, found = 0;
  VkTimelineSemaphoreSubmitInfo values = {VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
      .waitSemaphoreValueCount = 1, .pWaitSemaphoreValues = &before,
      .signalSemaphoreValueCount = 1, .pSignalSemaphoreValues = &after};
  VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values,
      .commandBufferCount = 1, .pCommandBuffers = &commands, .pWaitDstStageMask = &stage,
      .waitSemaphoreCount = 1, .pWaitSemaphores = &timeline,
      .signalSemaphoreCount = 1, .pSignalSemaphores = &timeline};
  TRY(vkQueueSubmit(queue, 1, &submit, 0));
  if (c[0] != -1) printf("wrong: work ran before its timeline semaphore\n");
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, i < 3 ? wait_two : signal_one, 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
  TRY(vkGetSemaphoreCounterValue(device, timeline, &found));
  if (found != 2) printf("wrong: timeline semaphore has %d\n", (int)found);
  expect_scaled("timeline semaphores", 256, 7);
}

enum { SIDE = 16 };
static const VkImageSubresourceRange all = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};

// A linear image, its view, and the host's bytes of its first row.
static VkImage linear(VkFormat format, VkImageUsageFlags usage, VkImageView *view, char **bytes,
                      size_t *pitch) {
  VkImageCreateInfo info = {VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO, .imageType = VK_IMAGE_TYPE_2D,
      .format = format, .extent = {SIDE, SIDE, 1}, .mipLevels = 1,
      .arrayLayers = 1, .samples = 1, .tiling = VK_IMAGE_TILING_LINEAR,
      .usage = usage, .initialLayout = VK_IMAGE_LAYOUT_PREINITIALIZED};
  VkImage image;
  TRY(vkCreateImage(device, &info, 0, &image));
  VkMemoryRequirements need;
  vkGetImageMemoryRequirements(device, image, &need);
  VkMemoryAllocateInfo wanted = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .allocationSize = need.size};
  VkDeviceMemory made;
  TRY(vkAllocateMemory(device, &wanted, 0, &made));
  TRY(vkBindImageMemory(device, image, made, 0));
  TRY(vkMapMemory(device, made, 0, VK_WHOLE_SIZE, 0, (void **)bytes));
  VkImageSubresource part = {VK_IMAGE_ASPECT_COLOR_BIT};
  VkSubresourceLayout rows;
  vkGetImageSubresourceLayout(device, image, &part, &rows);
  *bytes += rows.offset, *pitch = rows.rowPitch;
  VkImageViewCreateInfo seen = {VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO, .image = image,
      .viewType = VK_IMAGE_VIEW_TYPE_2D, .format = info.format, .subresourceRange = all};
  TRY(vkCreateImageView(device, &seen, 0, view));
  return image;
}

static VkImageMemoryBarrier turned(VkImage image) {
  return (VkImageMemoryBarrier){VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
      .srcAccessMask = VK_ACCESS_HOST_WRITE_BIT,
      .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT,
      .oldLayout = VK_IMAGE_LAYOUT_PREINITIALIZED, .newLayout = VK_IMAGE_LAYOUT_GENERAL,
      .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
      .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED, .image = image, .subresourceRange = all};
}

// Linear images that the host has written: one fetched and filtered, one loaded and stored to.
static void images(const char *shader) {
  VkImageView view, other;
  char *bytes, *texels;
  size_t pitch, line;
  VkImage image = linear(VK_FORMAT_R32_SFLOAT, VK_IMAGE_USAGE_SAMPLED_BIT, &view, &bytes, &pitch);
  VkImage picture = linear(VK_FORMAT_R8G8B8A8_UNORM, VK_IMAGE_USAGE_STORAGE_BIT, &other, &texels, &line);
  for (int i = 0; i < SIDE * SIDE; i++) {
    *(float *)(bytes + i / SIDE * pitch + i % SIDE * 4) = i / SIDE * 100 + i % SIDE;
    *(unsigned *)(texels + i / SIDE * line + i % SIDE * 4) = i | (255 - i) << 8;
  }
  VkSamplerAddressMode edge = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE;
  VkSamplerCreateInfo filter = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO, .magFilter = VK_FILTER_LINEAR,
      .minFilter = VK_FILTER_LINEAR, .addressModeU = edge, .addressModeV = edge, .addressModeW = edge};
  VkSampler sampler;
  TRY(vkCreateSampler(device, &filter, 0, &sampler));
  VkDescriptorSetLayoutBinding places[3] = {
      {0, VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, 1, VK_SHADER_STAGE_COMPUTE_BIT},
      {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT},
      {2, VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, 1, VK_SHADER_STAGE_COMPUTE_BIT}};
  VkDescriptorSetLayoutCreateInfo sets = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                          .bindingCount = 3, .pBindings = places};
  VkDescriptorSetLayout set_layout;
  TRY(vkCreateDescriptorSetLayout(device, &sets, 0, &set_layout));
  VkPipelineLayoutCreateInfo layouts = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                        .setLayoutCount = 1, .pSetLayouts = &set_layout};
  VkPipelineLayout own;
  TRY(vkCreatePipelineLayout(device, &layouts, 0, &own));
  VkPipeline reading = compile(shader, own);
  VkDescriptorSet bound = allocate_set(set_layout);
  VkDescriptorImageInfo texture = {sampler, view, VK_IMAGE_LAYOUT_GENERAL};
  VkDescriptorImageInfo changed = {0, other, VK_IMAGE_LAYOUT_GENERAL};
  VkDescriptorBufferInfo out = {buffers[2], 0, VK_WHOLE_SIZE};
  VkWriteDescriptorSet writes[3] = {
      {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = bound, .descriptorCount = 1,
       .descriptorType = places[0].descriptorType, .pImageInfo = &texture},
      {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = bound, .dstBinding = 1, .descriptorCount = 1,
       .descriptorType = places[1].descriptorType, .pBufferInfo = &out},
      {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = bound, .dstBinding = 2, .descriptorCount = 1,
       .descriptorType = places[2].descriptorType, .pImageInfo = &changed}};
  vkUpdateDescriptorSets(device, 3, writes, 0, 0);
  reset();
  VkCommandBuffer commands = begin();
  VkImageMemoryBarrier turns[2] = {turned(image), turned(picture)};
  vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_HOST_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0,
                       0, 0, 0, 0, 2, turns);
  vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, reading);
  vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, own, 0, 1, &bound, 0, 0);
  vkCmdDispatch(commands, SIDE * SIDE / 64, 1, 1);
  end(commands, 0, 0);
  for (int i = 0; i < SIDE * SIDE; i++) {
    float row = i / SIDE * 100, x = i % SIDE, beside = x < SIDE - 1 ? x + 0.5f : x;
    float want = 2 * row + x + beside;
    if (c[i] < want - 0.01f || c[i] > want + 0.01f) {
      printf("wrong: image: c[%d] = %g, expected %g\n", i, c[i], want);
      return;
    }
    unsigned texel = *(unsigned *)(texels + i / SIDE * line + i % SIDE * 4);
    unsigned stored = (255 - i) | i << 8 | (i % SIDE) << 16 | 255u << 24;
    if (texel != stored) {
      printf("wrong: stored image: texel %d = %08x, expected %08x\n", i, texel, stored);
      return;
    }
  }
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  start(arguments[1]);
  VkCommandBuffer commands;

  reset(), commands = begin(), bind(commands, 256, 2.5f), vkCmdDispatch(commands, 4, 1, 1);
  end(commands, 0, 0), expect_scaled("dispatch", 256, 2.5f);

  reset(), commands = begin(), bind(commands, 100, 0.5f), vkCmdDispatch(commands, 4, 1, 1);
  end(commands, 0, 0), expect_scaled("push constants", 100, 0.5f);

  commands = begin(), vkCmdFillBuffer(commands, buffers[2], 16, SIZE - 16, 0x12345678);
  memset(c, 0, SIZE), end(commands, 0, 0);
  expect_word("fill", c, 3, 0), expect_word("fill", c, 4, 0x12345678);
  expect_word("fill", c, COUNT - 1, 0x12345678);

  VkSemaphoreCreateInfo semaphores = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
  VkSemaphore semaphore;
  TRY(vkCreateSemaphore(device, &semaphores, 0, &semaphore));
  reset(), commands = begin();
  VkBufferCopy copy = {4, 12, SIZE - 12};
  vkCmdCopyBuffer(commands, buffers[0], buffers[2], 1, &copy), end(commands, 0, semaphore);
  if (c[2] != -1 || c[3] != 1 || c[COUNT - 1] != COUNT - 3) printf("wrong: copy\n");

  unsigned words[4] = {2, 1, 1, 77};
  commands = begin(), vkCmdUpdateBuffer(commands, buffers[0], 0, 16, words);
  end(commands, semaphore, 0), expect_word("update", a, 3, 77);

  for (int i = 0; i < COUNT; i++) c[i] = -1;
  commands = begin(), bind(commands, 256, 3), vkCmdDispatchIndirect(commands, buffers[0], 0);
  end(commands, 0, 0), expect_scaled("indirect", 128, 3);

  VkEventCreateInfo events = {VK_STRUCTURE_TYPE_EVENT_CREATE_INFO};
  VkEvent event;
  TRY(vkCreateEvent(device, &events, 0, &event));
  reset(), commands = begin(), bind(commands, 256, 4), vkCmdDispatch(commands, 4, 1, 1);
  vkCmdSetEvent(commands, event, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
  vkCmdWaitEvents(commands, 1, &event, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                  VK_PIPELINE_STAGE_HOST_BIT, 0, 0, 0, 0, 0, 0);
  end(commands, 0, 0), expect_scaled("event", 256, 4);
  if (vkGetEventStatus(device, event) != VK_EVENT_SET) printf("wrong: event status\n");

  VkQueryPoolCreateInfo queries = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                   .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2};
  VkQueryPool times;
  TRY(vkCreateQueryPool(device, &queries, 0, &times));
  commands = begin(), vkCmdResetQueryPool(commands, times, 0, 2);
  vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, times, 0);
  vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times, 1);
  end(commands, 0, 0);
  unsigned long long stamps[2] = {0, 0};
  TRY(vkGetQueryPoolResults(device, times, 0, 2, sizeof stamps, stamps, 8,
                            VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  if (!stamps[0] || stamps[1] < stamps[0]) printf("wrong: timestamps\n");

  reset(), commands = begin(), bind(commands, 256, 5), vkCmdDispatch(commands, 4096, 2, 1);
  end(commands, 0, 0), expect_scaled("large dispatch", 256, 5);

  timelines();
  images(arguments[2]);

  vkDeviceWaitIdle(device);
  printf("done\n");
  return 0;
}
